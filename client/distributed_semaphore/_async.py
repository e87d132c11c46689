"""The semaphore for asyncio."""

from __future__ import annotations

import asyncio
import functools
import inspect
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from distributed_semaphore._arguments import check_function, check_request, is_coroutine_function
from distributed_semaphore._base import EXPLANATION, BaseSemaphore
from distributed_semaphore._errors import InvalidArgument, WouldWait
from distributed_semaphore._listeners import observe
from distributed_semaphore._request import ReleaseOutcome, Request, Slot
from distributed_semaphore._statistics import Statistics, seen, statistics
from distributed_semaphore.protocol.scripts import INSPECT, Call

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from types import TracebackType

    from distributed_semaphore._courier import Courier
    from distributed_semaphore._errors import SemaphoreError
    from distributed_semaphore._session import Session

P = ParamSpec("P")
T = TypeVar("T")


class AsyncSemaphore(BaseSemaphore):
    __doc__ = BaseSemaphore.__doc__

    async def acquire(self, *, timeout: float | None = None, weight: int = 1, priority: int = 0) -> Slot:  # noqa: ASYNC109
        """Wait for a slot, first come, first served. One round trip if one is free.

        Args:
            timeout: seconds to wait at most, up to a year; None waits as long as it takes, 0 does not wait: it takes
                a slot that is free and that nobody waits for.
            weight: how much of the limit to take, 1 to 100000.
            priority: -8000 to 8000; higher goes first.

        Returns:
            The slot, renewed until it is released. `slot()` and ``async with`` also stop the work when it is lost.

        Raises:
            AcquireTimeout: no slot within `timeout`; the text says why. With timeout 0 it is `WouldWait`.
            NotConfigured, Closed, QueueFull, WeightTooLarge: nobody, or not this request, is let in; see each.
            Unavailable: Redis cannot be reached (with a timeout, or not at all).
            InvalidArgument: an argument is outside its range.
        """
        check_request(timeout, weight, priority)
        with observe(self.name, weight) as observation:
            return observation.granted(await self._acquire(timeout, weight, priority))

    async def _acquire(self, timeout: float | None, weight: int, priority: int) -> Slot:  # noqa: ASYNC109
        courier, session = self._connect()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Slot | SemaphoreError | None] = loop.create_future()

        def done(outcome: Slot | SemaphoreError) -> None:
            courier.deliver(loop, partial(_settle, answer, outcome))

        request = Request(weight, priority, may_wait=timeout != 0, done=done)
        courier.submit(session.ask, request)
        alarm = loop.call_later(timeout, _settle, answer, None) if timeout else None
        try:
            outcome = await answer
        except asyncio.CancelledError:
            courier.submit(session.abandon, request)
            raise
        finally:
            if alarm is not None:
                alarm.cancel()
        if isinstance(outcome, Slot):
            return outcome
        raise outcome or await self._give_up(courier, session, request)

    async def _give_up(self, courier: Courier, session: Session, request: Request) -> SemaphoreError:
        loop = asyncio.get_running_loop()
        look: asyncio.Future[Any] = loop.create_future()
        error = self._withdraw(
            courier, session, request, lambda reply: courier.deliver(loop, partial(_settle, look, reply))
        )
        if error is not None:
            return error
        waited = loop.time() - request.asked_at
        loop.call_later(EXPLANATION, _settle, look, None)
        return self._timed_out(courier, waited, await look)

    async def try_acquire(self, *, weight: int = 1) -> Slot | None:
        """Take a slot if one is free and nobody waits for it; None otherwise. One round trip.

        Raises:
            NotConfigured, Closed, WeightTooLarge, Unavailable, InvalidArgument: as `acquire`.
        """
        try:
            return await self.acquire(timeout=0, weight=weight)
        except WouldWait:
            return None

    async def release(self, slot: Slot) -> ReleaseOutcome:
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
        courier, _ = self._connect()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ReleaseOutcome] = loop.create_future()
        slot.give_back(lambda outcome: courier.deliver(loop, partial(_settle, answer, outcome)))
        return await answer

    def slot(self, *, timeout: float | None = None, weight: int = 1, priority: int = 0) -> AsyncBlock:
        """Hold a slot for the time of an ``async with`` block. Arguments and errors are those of `acquire`.

        The block gets the `Slot`. If the slot is lost the block is cancelled and `SlotLost` raised. Leaving the block
        gives the slot back at once without waiting for Redis to say so; the release is repeated until it gets through.
        """
        check_request(timeout, weight, priority)
        return AsyncBlock(self, timeout, weight, priority)

    async def __aenter__(self) -> Slot:
        """Hold a slot for the time of the block; see `slot`."""
        block = self.slot()
        slot = await block.__aenter__()
        _open_blocks.setdefault((self, _this_task()), []).append(block)
        return slot

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        mine = self, _this_task()
        block = _open_blocks[mine].pop()
        if not _open_blocks[mine]:
            del _open_blocks[mine]
        await block.__aexit__(exc_type, exc, trace)

    @overload
    async def call(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, or await a coroutine function, while holding a slot. Errors are those of `slot`.

        Raises:
            InvalidArgument: nothing to call, or a generator function: its body would run after the slot was given back.
        """
        check_function(fn)
        async with self.slot():
            result = fn(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

    def limit(self, fn: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        """Decorate a coroutine function so that each call of it holds a slot. Errors are those of `slot`.

        Raises:
            InvalidArgument: nothing to call; a generator function, whose body would run after the slot was given back;
                or a function that is no coroutine function, which `Semaphore.limit` takes.
        """
        check_function(fn)
        if not is_coroutine_function(fn):
            raise InvalidArgument(f"AsyncSemaphore.limit is for coroutine functions: use Semaphore.limit for {fn!r}")

        @functools.wraps(fn)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> T:
            async with self.slot():
                return await fn(*args, **kwargs)

        return limited

    async def statistics(self) -> Statistics:
        """Look at the semaphore as it is now. One round trip.

        Raises:
            Unavailable: Redis cannot be reached.
        """
        courier, session = self._connect()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        call = Call(INSPECT, session.keys, [0])
        courier.submit(session.query, call, lambda reply: courier.deliver(loop, partial(_settle, answer, reply)))
        return statistics(self.name, session, seen(courier, await answer))


class AsyncBlock:
    """The time for which a slot is held; cancels its task when the slot is lost, as `asyncio.timeout` does."""

    def __init__(self, semaphore: AsyncSemaphore, timeout: float | None, weight: int, priority: int) -> None:
        self._semaphore = semaphore
        self._request = timeout, weight, priority
        self._slot: Slot | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._cancelled = False

    async def __aenter__(self) -> Slot:
        """Wait for a slot."""
        if self._slot is not None:
            raise RuntimeError("a slot() block is entered once: make a new one")
        timeout, weight, priority = self._request
        self._slot = slot = await self._semaphore.acquire(timeout=timeout, weight=weight, priority=priority)
        self._task = _this_task()
        self._cancelling = self._task.cancelling()
        slot.watch(self._cancel, asyncio.get_running_loop())
        return slot

    def _cancel(self) -> None:
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the slot back, or tell of its loss."""
        slot, task = self._slot, self._task
        if slot is None or task is None:
            raise RuntimeError("the slot() block was not entered")
        self._task = None
        slot.unwatch()
        lost = slot.lost
        slot.give_back()
        outer = self._cancelled and task.uncancel() > self._cancelling
        if lost and (exc is None or (self._cancelled and not outer and isinstance(exc, asyncio.CancelledError))):
            raise slot.loss() from exc


#: The open blocks of ``async with semaphore``, by semaphore and task, the innermost last.
_open_blocks: dict[tuple[AsyncSemaphore, asyncio.Task[Any]], list[AsyncBlock]] = {}


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a slot is held by a task: use it inside a coroutine that a task runs")
    return task


def _settle(answer: asyncio.Future[Any], outcome: object) -> None:
    if not answer.done():
        answer.set_result(outcome)
