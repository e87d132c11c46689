"""The courier: the one thread of a process that talks to Redis, for every event loop and thread of it.

User code cannot hold up renewals, however long it computes, and cancelling a caller never leaves a half-read reply
behind.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from distributed_semaphore._errors import SemaphoreError
from distributed_semaphore._identity import new_client_id
from distributed_semaphore._places import Nodes, home
from distributed_semaphore._session import IDLE, Session
from distributed_semaphore.protocol.address import Address, connect, without_password

if TYPE_CHECKING:
    from collections.abc import Callable

    from distributed_semaphore.protocol.config import Config

FAREWELL: Final = 1.0
"""Seconds that the end of the process waits for the last releases."""


class Courier:
    """Carries the calls of this process to one Redis."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.shown_url = without_password(url)
        self.user: str = Address.parse(url).options.get("username") or "default"
        """Whom Redis takes this process for."""
        self.client = new_client_id()
        self.forked = False
        """Whether this is a child's copy of its parent's courier: what it held stays the parent's."""
        self._loop = _io_loop()
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._inbox_noted = False
        self._outgoing: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
        self._sessions: dict[str, Session] = {}
        self._home = home(self, connect(url))
        self._farewell: threading.Event | None = None
        self.submit(self._start)

    # Called from any thread.

    def submit(self, action: Callable[..., None], *args: Any) -> None:
        """Have an action run in the I/O thread, in the order of submission."""
        if self.forked:
            return
        self._inbox.append((action, args))
        if not self._inbox_noted:
            self._inbox_noted = True
            self._loop.call_soon_threadsafe(self._take_inbox)

    def session(self, name: str, config: Config | None = None, cap: int = 0) -> Session:
        """Give the session of a semaphore, one for the process; see `Session.declare`."""
        with _lock:
            if (session := self._sessions.get(name)) is None:
                session = self._sessions.setdefault(name, Session(self, name, self._home))
        session.declare(config, cap)
        return session

    def close(self) -> None:
        """Give everything back that this process holds or waits for; called at the end of the process."""
        done = threading.Event()
        self.submit(self._leave, done)
        done.wait(FAREWELL)

    # Below this line everything runs in the I/O thread.

    def call_soon(self, action: Callable[[], None]) -> None:
        """Run an action once all that has been submitted by now is done."""
        self._loop.call_soon(action)

    def call_at(self, when: float, action: Callable[[], None]) -> asyncio.Handle:
        """Run an action at a time of the monotonic clock."""
        return self._loop.call_at(when, action)

    def sessions(self) -> list[Session]:
        """Give all sessions."""
        return list(self._sessions.values())

    def trouble(self) -> None:
        """Note that a server cannot be used, or no longer is where a semaphore lives."""
        if isinstance(self._home, Nodes):
            self._home.doubt()

    def settled(self) -> None:
        """Note that a round trip succeeded."""
        if self._farewell and not any(session.owes for session in self.sessions()):
            self._farewell.set()

    def _retire_idle(self) -> None:
        """Forget semaphores that are not used any more: a process may use any number of them, one after another."""
        self._loop.call_later(IDLE, self._retire_idle)
        with _lock:
            idle = [session for session in self._sessions.values() if session.idle]
            for session in idle:
                session.retired = True
                del self._sessions[session.name]
        for link in {session.link for session in idle}:
            link.forget([session for session in idle if session.link is link])

    def deliver(self, loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
        """Have an action run in a caller's event loop; all of one turn travel together."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.setdefault(loop, []).append(action)

    def _flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        for loop, actions in outgoing.items():
            # A loop that was closed has nobody left to tell; its slots end with their leases.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_run_all, actions)

    def _start(self) -> None:
        self._home.start()
        self._loop.call_later(IDLE, self._retire_idle)

    def _take_inbox(self) -> None:
        self._inbox_noted = False
        inbox = self._inbox
        while inbox:
            action, args = inbox.popleft()
            action(*args)

    def _leave(self, done: threading.Event) -> None:
        for session in self.sessions():
            session.leave()
        self._farewell = done
        self.settled()


def _run_all(actions: list[Callable[[], None]]) -> None:
    for action in actions:
        action()


#: Re-entrant: a signal handler that uses a semaphore may interrupt its own thread while that has the lock.
_lock = threading.RLock()
_couriers: dict[str, Courier] = {}
_thread_loop: asyncio.AbstractEventLoop | None = None


def courier_to(url: str) -> Courier:
    """Give this process's courier to a Redis; the first call starts it."""
    with _lock:
        if (courier := _couriers.get(url)) is None:
            courier = _couriers.setdefault(url, Courier(url))
        return courier


def refuse_green_threads() -> None:
    """Refuse a process whose threads are greenlets: one that computes would hold up every renewal.

    Raises:
        SemaphoreError: gevent has replaced them.
    """
    patched = sys.modules.get("gevent.monkey")
    if patched is not None and patched.is_module_patched("threading"):
        raise SemaphoreError(
            "gevent has replaced the threads that renewals run in: leave them as they are, with "
            "gevent.monkey.patch_all(thread=False)"
        )


def _io_loop() -> asyncio.AbstractEventLoop:
    """Give the event loop of the I/O thread, shared by all couriers of the process."""
    global _thread_loop  # noqa: PLW0603  one thread a process is the point
    if _thread_loop is None:
        refuse_green_threads()  # a program may have replaced them after it made its semaphores
        try:
            import uvloop  # noqa: PLC0415  optional: the extra `fast`

            loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        except ImportError:
            loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="distributed-semaphore", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads now: the next use tries again
            loop.close()
            raise
        _thread_loop = loop
        _close_with_worker()
    return _thread_loop


@atexit.register
def _close_all() -> None:
    for courier in list(_couriers.values()):
        courier.close()


def _close_with_worker() -> None:
    """Have a worker of multiprocessing give everything back, too: it ends without atexit."""
    if (multiprocessing := sys.modules.get("multiprocessing")) and multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, _close_all, exitpriority=0)


def _after_fork() -> None:
    """Start afresh: a child has none of its parent's threads and must not touch its connections."""
    global _lock, _thread_loop  # noqa: PLW0603
    _lock = threading.RLock()
    for courier in _couriers.values():
        courier.forked = True
    _couriers.clear()
    _thread_loop = None


os.register_at_fork(after_in_child=_after_fork)
