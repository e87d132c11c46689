"""The courier: the one thread of a process that talks to Redis, for every event loop and thread of it.

What callers want is collected while a round trip is under way and sent with the next one, so that a process needs
two connections (commands, and messages of its grants) however many workers it has. User code cannot hold up
renewals, however long it computes, and cancelling a caller never leaves a half-read reply behind.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import os
import random
import sys
import threading
import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import AuthenticationError, NoPermissionError, RedisError

from distributed_semaphore._errors import SemaphoreError, Unavailable
from distributed_semaphore._identity import new_client_id
from distributed_semaphore._session import IDLE, Session
from distributed_semaphore._wire import Wire
from distributed_semaphore.protocol.address import connect, without_password
from distributed_semaphore.protocol.scripts import Call, run_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from distributed_semaphore.protocol.config import Config

log = logging.getLogger("distributed_semaphore")

#: A round trip may take this many seconds, or a third of the shortest lease in use, before its connection is given up.
ROUND_TRIP: Final = 2.0
FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0
FAREWELL: Final = 1.0
"""Seconds that the end of the process waits for the last releases."""


class Courier:
    """Carries the calls of this process to one Redis."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.shown_url = without_password(url)
        self.client = new_client_id()
        self.failure: str | None = None
        """Why Redis cannot be used at the moment; None while it can."""
        self.forked = False
        """Whether this is a child's copy of its parent's courier: what it held stays the parent's."""
        self._loop = _io_loop()
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._inbox_noted = False
        self._outgoing: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
        self._sessions: dict[str, Session] = {}
        self._by_channel: dict[str, Session] = {}
        self._ready: dict[Session, None] = {}
        """Sessions that have something to send, in the order in which they said so."""
        redis = connect(url)
        self._commands, self._messages = Wire(redis), Wire(redis)
        self._subscribing = asyncio.Lock()
        self._listening = False
        self._listening_to: set[str] = set()
        """Channels that the present connection has subscribed to."""
        self._wake = asyncio.Event()
        self._wanted = asyncio.Event()
        """Set once there is a channel to listen to."""
        self._farewell: threading.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()
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
                session = self._sessions[name] = Session(self, name)
        session.declare(config, cap)
        return session

    def close(self) -> None:
        """Give everything back that this process holds or waits for; called at the end of the process."""
        done = threading.Event()
        self.submit(self._leave, done)
        done.wait(FAREWELL)

    # Below this line everything runs in the I/O thread.

    def call_at(self, when: float, action: Callable[[], None]) -> asyncio.Handle:
        """Run an action at a time of the monotonic clock."""
        return self._loop.call_at(when, action)

    def ready(self, session: Session) -> None:
        """Note that a session has something to send."""
        self._ready[session] = None
        self._wake.set()

    def _retire_idle(self) -> None:
        """Forget semaphores that are not used any more: a process may use any number of them, one after another."""
        self._loop.call_later(IDLE, self._retire_idle)
        with _lock:
            idle = [session for session in self._sessions.values() if session.idle]
            for session in idle:
                session.retired = True
                del self._sessions[session.name]
        channels = [session.channel for session in idle if self._by_channel.pop(session.channel, None)]
        if channels:
            self._keep(self._loop.create_task(self._unsubscribe(channels)))

    async def _unsubscribe(self, channels: list[str]) -> None:
        async with self._subscribing:
            gone = [channel for channel in channels if channel not in self._by_channel]
            if gone and self._listening_to.issuperset(gone):
                self._listening_to.difference_update(gone)
                with contextlib.suppress(RedisError, OSError):
                    await self._messages.send([["UNSUBSCRIBE", *gone]])

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
        self._keep(self._loop.create_task(self._send()))
        self._keep(self._loop.create_task(self._receive()))
        self._loop.call_later(IDLE, self._retire_idle)

    def _take_inbox(self) -> None:
        self._inbox_noted = False
        inbox = self._inbox
        while inbox:
            action, args = inbox.popleft()
            action(*args)

    async def _send(self) -> None:
        pause = FIRST_PAUSE
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                fine = await self._round_trip()
            except Exception:  # a fault of ours must not end every renewal of the process
                log.exception("a round trip to Redis %s failed unexpectedly", self.shown_url)
                fine = False
            if fine:
                pause = FIRST_PAUSE
                if self._farewell and not any(session.owes for session in list(self._sessions.values())):
                    self._farewell.set()
            else:
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
                pause = min(2 * pause, LONGEST_PAUSE)
                self._wake.set()

    async def _round_trip(self) -> bool:
        sessions, self._ready = list(self._ready), {}
        calls: list[Call] = []
        parts: list[tuple[Session, int]] = []
        for session in sessions:
            composed = session.compose()
            parts.append((session, len(composed)))
            calls += composed
        if not calls:
            return True
        sent = time.monotonic()
        patience = min(ROUND_TRIP, *(session.beat for session, _ in parts))
        try:
            async with asyncio.timeout(patience):
                replies = await run_over(self._commands.exchange, calls)
        except (RedisError, OSError, TimeoutError) as error:
            await self._commands.close()
            self._failed(error)
            for session, _ in parts:
                session.unsent()
            return False
        if self.failure is not None:
            log.info("Redis %s is back", self.shown_url)
            self.failure = None
        answers = iter(replies)
        fine = [session.receive(sent, list(islice(answers, n))) for session, n in parts]
        return all(fine)

    def _failed(self, error: Exception) -> None:
        said = str(error) or type(error).__name__
        if self.failure is None:
            log.warning("Redis %s cannot be used: %s; trying again", self.shown_url, said)
        self.failure = said
        if isinstance(error, AuthenticationError | NoPermissionError):
            refusal = Unavailable(f"Redis {self.shown_url} refuses this client: {said}")
            for session in list(self._sessions.values()):
                session.refuse_all(refusal)

    async def _receive(self) -> None:
        """Listen for grants; whenever a subscription is new, its session looks at the truth."""
        pause = FIRST_PAUSE
        while True:
            await self._wanted.wait()
            try:
                await self._subscribe_all()
                while True:
                    self._take_message(await self._messages.read())
                    pause = FIRST_PAUSE
            except (RedisError, OSError, TimeoutError) as error:
                self._failed(error)
                for session in list(self._sessions.values()):
                    session.on_unsubscribed()
                async with self._subscribing:
                    self._listening = False
                    self._listening_to.clear()
                    await self._messages.close()
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
                pause = min(2 * pause, LONGEST_PAUSE)

    def _take_message(self, message: Any) -> None:
        if isinstance(message, RedisError):
            raise message
        kind, channel, text = message
        if session := self._by_channel.get(channel):
            if kind == "subscribe":
                session.on_subscribed()
            elif kind == "message":
                session.on_message(text)

    def subscribe(self, channel: str, session: Session) -> None:
        """Listen to one more channel; the session hears when it does."""
        self._by_channel[channel] = session
        if channel in self._listening_to:  # it was about to be given up
            session.on_subscribed()
        elif self._wanted.is_set():
            self._keep(self._loop.create_task(self._subscribe_more()))
        self._wanted.set()

    async def _subscribe_all(self) -> None:
        async with self._subscribing:
            channels = list(self._by_channel)
            await self._messages.send([["SUBSCRIBE", *channels]])
            self._listening = True
            self._listening_to.update(channels)
        await self._subscribe_more()  # those that came meanwhile

    async def _subscribe_more(self) -> None:
        async with self._subscribing:
            more = [channel for channel in self._by_channel if channel not in self._listening_to]
            if self._listening and more:
                self._listening_to.update(more)
                # A broken connection is noticed by the reader, which subscribes to everything anew.
                with contextlib.suppress(RedisError, OSError):
                    await self._messages.send([["SUBSCRIBE", *more]])

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Hold a task for as long as it runs: the loop itself only remembers it weakly."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _leave(self, done: threading.Event) -> None:
        for session in list(self._sessions.values()):
            session.leave()
        self._farewell = done
        self._wake.set()


def _run_all(actions: list[Callable[[], None]]) -> None:
    for action in actions:
        action()


_lock = threading.Lock()
_couriers: dict[str, Courier] = {}
_thread_loop: asyncio.AbstractEventLoop | None = None


def courier_to(url: str) -> Courier:
    """Give this process's courier to a Redis; the first call starts it."""
    with _lock:
        if (courier := _couriers.get(url)) is None:
            courier = _couriers[url] = Courier(url)
        return courier


def _io_loop() -> asyncio.AbstractEventLoop:
    """Give the event loop of the I/O thread, shared by all couriers of the process."""
    global _thread_loop  # noqa: PLW0603  one thread a process is the point
    if _thread_loop is None:
        patched = sys.modules.get("gevent.monkey")
        if patched is not None and patched.is_module_patched("threading"):
            raise SemaphoreError(
                "gevent has replaced the threads that renewals run in: leave them as they are, with "
                "gevent.monkey.patch_all(thread=False)"
            )
        try:
            import uvloop  # noqa: PLC0415  optional: the extra `fast`

            _thread_loop = uvloop.new_event_loop()
        except ImportError:
            _thread_loop = asyncio.new_event_loop()
        threading.Thread(target=_thread_loop.run_forever, name="distributed-semaphore", daemon=True).start()
    return _thread_loop


@atexit.register
def _close_all() -> None:
    for courier in list(_couriers.values()):
        courier.close()


def _after_fork() -> None:
    """Start afresh: a child has none of its parent's threads and must not touch its connections."""
    global _lock, _thread_loop  # noqa: PLW0603
    _lock = threading.Lock()
    for courier in _couriers.values():
        courier.forked = True
    _couriers.clear()
    _thread_loop = None


os.register_at_fork(after_in_child=_after_fork)
