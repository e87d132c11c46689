"""Hearing of what this process does with its semaphores: what metrics and traces are made of.

Listeners hear in the thread that asks or releases, and of a loss in a thread of their own, never in the I/O thread:
however slow one is, renewals go on. What one raises is logged and changes nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, Self

from distributed_semaphore._arguments import check_callable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from distributed_semaphore._request import Slot

log = logging.getLogger("distributed_semaphore")

BUCKETS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
"""Bounds of histograms of waits and holds, in seconds."""


class Watch:
    """What a listener notes of one request: first `granted` or `refused`, after a grant `released` or `lost`.

    The methods do nothing; override those that you need. They should take microseconds: the caller waits for them.
    """

    __slots__ = ()

    def granted(self, slot: Slot) -> None:
        """Hear that the request has its slot, after `slot.waited` seconds."""

    def refused(self, error: BaseException) -> None:
        """Hear that the request got no slot: any `SemaphoreError`, or what interrupted the wait."""

    def released(self, held: float) -> None:
        """Hear that the slot was given back after so many seconds."""

    def lost(self, held: float) -> None:
        """Hear that the slot was lost, so many seconds after its grant."""


class Observation:
    """One request, as all listeners watch it; a block around the waiting."""

    __slots__ = ("_granted_at", "_over", "_watches")

    def __init__(self, watches: tuple[Watch, ...]) -> None:
        self._watches = watches
        self._granted_at = 0.0
        self._over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is not None:
            self._tell(lambda watch: watch.refused(exc))

    def granted(self, slot: Slot) -> Slot:
        """Tell of the grant, and hear of the slot's end."""
        if self._watches:
            self._granted_at = time.monotonic()
            self._tell(lambda watch: watch.granted(slot))
            slot.observe(self)
        return slot

    def ended(self, *, lost: bool) -> None:
        """Tell how the hold has ended; a release and a loss that race are told once."""
        with _lock:
            over, self._over = self._over, True
        if not over:
            held = time.monotonic() - self._granted_at
            self._tell((lambda watch: watch.lost(held)) if lost else (lambda watch: watch.released(held)))

    def _tell(self, news: Callable[[Watch], None]) -> None:
        for watch in self._watches:
            try:
                news(watch)
            except Exception:
                log.exception("a listener of semaphores failed")


_NOBODY = Observation(())
_lock = threading.Lock()
_listeners: tuple[Callable[[str, int], Watch | None], ...] = ()
_losses: SimpleQueue[Observation] | None = None


def add_listener(listener: Callable[[str, int], Watch | None]) -> None:
    """Have a listener called with name and weight of each request of this process, on any semaphore, from now on.

    It returns the `Watch` that hears of that request, or None.

    Raises:
        InvalidArgument: it cannot be called.
    """
    check_callable("listener", listener)
    global _listeners  # noqa: PLW0603  one set of listeners a process, as logging has it
    with _lock:
        _listeners = (*_listeners, listener)


def remove_listener(listener: Callable[[str, int], Watch | None]) -> None:
    """Ask a listener no more; what it watches already it hears to the end.

    Raises:
        ValueError: it does not listen.
    """
    global _listeners  # noqa: PLW0603
    with _lock:
        left = list(_listeners)
        left.remove(listener)
        _listeners = tuple(left)


def observe(name: str, weight: int) -> Observation:
    """Begin to watch a request."""
    if not _listeners:
        return _NOBODY
    watches = []
    for listener in _listeners:
        try:
            watch = listener(name, weight)
        except Exception:
            log.exception("a listener of semaphores failed")
        else:
            if watch is not None:
                watches.append(watch)
    return Observation(tuple(watches))


def tell_of_loss(observation: Observation) -> None:
    """Have listeners hear of a loss soon, in a thread of their own, which the first loss starts."""
    global _losses  # noqa: PLW0603
    with _lock:
        if _losses is None:
            _losses = SimpleQueue()
            threading.Thread(target=_pass_on, args=(_losses,), name="semaphore-listeners", daemon=True).start()
    _losses.put(observation)


def _pass_on(losses: SimpleQueue[Observation]) -> None:
    while True:
        losses.get().ended(lost=True)


def _after_fork() -> None:
    global _lock, _losses
    _lock, _losses = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)
