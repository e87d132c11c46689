"""The semaphore for threads: the same names as for asyncio, without await."""

from __future__ import annotations

import functools
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from distributed_semaphore._arguments import check_callable, check_function, check_request, is_coroutine_function
from distributed_semaphore._base import EXPLANATION, BaseSemaphore
from distributed_semaphore._errors import InvalidArgument, WouldWait
from distributed_semaphore._listeners import observe
from distributed_semaphore._request import ReleaseOutcome, Request, Slot
from distributed_semaphore._statistics import Statistics, statistics

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from distributed_semaphore._courier import Courier
    from distributed_semaphore._errors import SemaphoreError
    from distributed_semaphore._session import Session

P = ParamSpec("P")
T = TypeVar("T")


class Semaphore(BaseSemaphore):
    __doc__ = BaseSemaphore.__doc__

    def acquire(self, *, timeout: float | None = None, weight: int = 1, priority: int = 0) -> Slot:
        """Wait for a slot, first come, first served. One round trip if one is free.

        Args:
            timeout: seconds to wait at most, up to a year; None waits as long as it takes, 0 does not wait: it takes
                a slot that is free and that nobody waits for.
            weight: how much of the limit to take, 1 to 100000.
            priority: -8000 to 8000; higher goes first.

        Returns:
            The slot, renewed until it is released, by whatever thread. A thread cannot be stopped from outside: call
            `slot.check()` between steps of long work, or pass `on_lost` to `slot()`.

        Raises:
            AcquireTimeout: no slot within `timeout`; the text says why. With timeout 0 it is `WouldWait`.
            NotConfigured, Closed, QueueFull, WeightTooLarge: nobody, or not this request, is let in; see each.
            Unavailable: Redis cannot be reached (with a timeout, or not at all).
            InvalidArgument: an argument is outside its range.
        """
        check_request(timeout, weight, priority)
        with observe(self.name, weight) as observation:
            return observation.granted(self._acquire(timeout, weight, priority))

    def _acquire(self, timeout: float | None, weight: int, priority: int) -> Slot:
        courier, session = self._connect()
        answer: Future[Slot | SemaphoreError] = Future()
        request = Request(weight, priority, may_wait=timeout != 0, done=answer.set_result)
        courier.submit(session.ask, request)
        try:
            outcome = answer.result(timeout or None)
        except NoAnswer:
            raise self._give_up(courier, session, request) from None
        except BaseException:  # KeyboardInterrupt, or what a signal handler has raised
            courier.submit(session.abandon, request)
            raise
        if isinstance(outcome, Slot):
            return outcome
        raise outcome

    def _give_up(self, courier: Courier, session: Session, request: Request) -> SemaphoreError:
        waited = time.monotonic() - request.asked_at
        look: Future[Any] = Future()
        error = self._withdraw(courier, session, request, look.set_result)
        if error is not None:
            return error
        try:
            reply = look.result(EXPLANATION)
        except NoAnswer:
            reply = None
        return self._timed_out(courier, waited, reply)

    def try_acquire(self, *, weight: int = 1) -> Slot | None:
        """Take a slot if one is free and nobody waits for it; None otherwise. One round trip.

        Raises:
            NotConfigured, Closed, WeightTooLarge, Unavailable, InvalidArgument: as `acquire`.
        """
        try:
            return self.acquire(timeout=0, weight=weight)
        except WouldWait:
            return None

    def release(self, slot: Slot) -> ReleaseOutcome:
        """Give a slot back and wait until Redis knows. One round trip, repeated until it gets through.

        While Redis cannot be reached it waits. Leaving a block does not wait.

        Returns:
            RELEASED, LOST or NOT_HELD: whether it was held until now. Releasing twice is harmless.

        Raises:
            InvalidArgument: it is no slot of this semaphore.
        """
        self._check_mine(slot)
        if slot.inherited:
            return ReleaseOutcome.NOT_HELD
        answer: Future[ReleaseOutcome] = Future()
        slot.give_back(answer.set_result)
        return answer.result()

    def slot(
        self,
        *,
        timeout: float | None = None,
        weight: int = 1,
        priority: int = 0,
        on_lost: Callable[[], None] | None = None,
    ) -> Block:
        """Hold a slot for the time of a ``with`` block. Arguments and errors are those of `acquire`.

        The block gets the `Slot`. If the slot is lost, `on_lost` is called in the I/O thread (it must be quick and not
        raise), `slot.check()` raises `SlotLost`, and so does the end of the block.
        """
        check_request(timeout, weight, priority)
        if on_lost is not None:
            check_callable("on_lost", on_lost)
        return Block(self, timeout, weight, priority, on_lost)

    def __enter__(self) -> Slot:
        """Hold a slot for the time of the block; see `slot`."""
        block = self.slot()
        slot = block.__enter__()
        _open_blocks.setdefault((self, threading.get_ident()), []).append(block)
        return slot

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        mine = self, threading.get_ident()
        block = _open_blocks[mine].pop()
        if not _open_blocks[mine]:
            del _open_blocks[mine]
        block.__exit__(exc_type, exc, trace)

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function while holding a slot. Errors are those of `slot`.

        Raises:
            InvalidArgument: nothing to call, or a generator or coroutine function, whose body would run after the slot
                was given back.
        """
        self._refuse_what_runs_later(fn)
        with self.slot():
            return fn(*args, **kwargs)

    def limit(self, fn: Callable[P, T]) -> Callable[P, T]:
        """Decorate a function so that each call of it holds a slot. Errors are those of `slot`.

        Raises:
            InvalidArgument: nothing to call, or a generator or coroutine function, whose body would run after the slot
                was given back; `AsyncSemaphore.limit` takes the latter.
        """
        self._refuse_what_runs_later(fn)

        @functools.wraps(fn)
        def limited(*args: P.args, **kwargs: P.kwargs) -> T:
            with self.slot():
                return fn(*args, **kwargs)

        return limited

    @staticmethod
    def _refuse_what_runs_later(fn: Callable[..., object]) -> None:
        check_function(fn)
        if is_coroutine_function(fn):
            raise InvalidArgument(f"Semaphore is for plain functions: use AsyncSemaphore for {fn!r}")

    def statistics(self) -> Statistics:
        """Look at the semaphore as it is now. One round trip.

        Raises:
            Unavailable: Redis cannot be reached.
        """
        session, snapshot = self._look()
        return statistics(self.name, session, snapshot)


class Block:
    """The time for which a slot is held."""

    def __init__(
        self,
        semaphore: Semaphore,
        timeout: float | None,
        weight: int,
        priority: int,
        on_lost: Callable[[], None] | None,
    ) -> None:
        self._semaphore = semaphore
        self._request = timeout, weight, priority
        self._on_lost = on_lost
        self._slot: Slot | None = None

    def __enter__(self) -> Slot:
        """Wait for a slot."""
        if self._slot is not None:
            raise RuntimeError("a slot() block is entered once: make a new one")
        timeout, weight, priority = self._request
        self._slot = slot = self._semaphore.acquire(timeout=timeout, weight=weight, priority=priority)
        if self._on_lost:
            slot.watch(self._on_lost)
        return slot

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the slot back, or tell of its loss."""
        slot = self._slot
        if slot is None:
            raise RuntimeError("the slot() block was not entered")
        slot.unwatch()
        lost = slot.lost
        slot.give_back()
        if lost and exc is None:
            raise slot.loss()


#: The open blocks of ``with semaphore``, by semaphore and thread, the innermost last.
_open_blocks: dict[tuple[Semaphore, int], list[Block]] = {}
