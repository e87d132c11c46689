"""The semaphore for asyncio."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Self, TypeVar, overload

from redis.exceptions import RedisError

from distributed_semaphore._arguments import check_request, own_config
from distributed_semaphore._courier import Courier, courier_to
from distributed_semaphore._errors import AcquireTimeout, InvalidArgument, SemaphoreError, Unavailable, WouldWait
from distributed_semaphore._request import Request, Slot
from distributed_semaphore._resource import resource_name
from distributed_semaphore.protocol.address import redis_url, without_password
from distributed_semaphore.protocol.config import State
from distributed_semaphore.protocol.keys import SemaphoreName
from distributed_semaphore.protocol.scripts import INSPECT, Call
from distributed_semaphore.protocol.snapshot import Counters, Holder, Snapshot, parse_snapshot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    from distributed_semaphore._session import Session

P = ParamSpec("P")
T = TypeVar("T")

EXPLANATION: Final = 0.5
"""Seconds that a timed out request may spend on finding out why."""
NAMED: Final = 3
"""Holders that the text of a time-out names."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """A semaphore at one moment, as all its users see it, and this process's part in it."""

    name: str
    limit: int | None
    """None: not configured."""
    state: State | None
    held: int
    """Weight of all slots held, by anybody."""
    waiting: int
    """Requests in the queue, of anybody."""
    held_here: int
    """Slots that this process holds."""
    waiting_here: int
    """Requests of this process without a slot yet, those included that its local limit keeps back."""
    totals: Counters


class AsyncSemaphore:
    """A semaphore shared by every process that uses the same name on the same Redis, for asyncio.

    Args:
        name: ``<namespace>/<name>`` of a DistributedSemaphore resource, or any name if you declare the semaphore here.
        redis: address, ``redis://host:6379/0``; by default what SEMAPHORE_REDIS_URL says.
        limit: declares a semaphore without Kubernetes: how many slots there are, 0 to 100000. The config of an
            operator, where there is one, wins.
        lease: with `limit`: seconds, 1 to 3600, after which a crashed holder's slot is free again; 30 by default.
        per_process_limit: how many slots this process may hold or wait for at once; further requests wait inside it.

    Raises:
        InvalidArgument: an argument is outside its range.

    Making one costs nothing; the first request opens the connections. It may be used from any number of tasks, event
    loops and threads of a process, which all share two connections.
    """

    def __init__(
        self,
        name: str,
        *,
        redis: str | None = None,
        limit: int | None = None,
        lease: float | None = None,
        per_process_limit: int | None = None,
    ) -> None:
        try:
            self._url = redis_url(redis)
            self.name: str = SemaphoreName(name)
            self._config = own_config(limit, lease)
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
        if per_process_limit is not None and per_process_limit < 1:
            raise InvalidArgument(f"per_process_limit is at least 1, not {per_process_limit}")
        self._cap = per_process_limit or 0
        self._blocks: dict[asyncio.Task[Any], list[_Block]] = {}

    @classmethod
    def from_resource(
        cls,
        name: str,
        namespace: str | None = None,
        *,
        redis: str | None = None,
        per_process_limit: int | None = None,
        patience: float = 10.0,
    ) -> Self:
        """Make the semaphore of a DistributedSemaphore resource, read from Kubernetes (extra `kubernetes`).

        Makes sure that this Redis serves that resource in its present generation, waiting for the operator if need be.
        Blocks for one call to each of Kubernetes and Redis; meant for the start of a program.

        Args:
            name: the resource's metadata.name.
            namespace: its namespace; by default that of the pod or of the current kubeconfig context.
            redis: as for the class.
            per_process_limit: as for the class.
            patience: seconds to wait for the operator to bring the resource's present generation to Redis.

        Raises:
            ResourceUnreadable: there is no such resource, or it may not be read.
            WrongRedis: this Redis does not serve the resource.
            Unavailable: Redis cannot be reached.
        """
        try:
            url = redis_url(redis)
        except ValueError as error:
            raise InvalidArgument(str(error)) from None
        return cls(resource_name(name, namespace, url, patience), redis=url, per_process_limit=per_process_limit)

    async def acquire(self, *, timeout: float | None = None, weight: int = 1, priority: int = 0) -> Slot:  # noqa: ASYNC109
        """Wait for a slot, first come, first served. One round trip if one is free.

        Args:
            timeout: seconds to wait at most; None waits as long as it takes, 0 does not wait.
            weight: how much of the limit to take, at least 1.
            priority: -8000 to 8000; higher goes first.

        Returns:
            The slot, renewed until it is released. `slot()` and ``async with`` also stop the work when it is lost.

        Raises:
            AcquireTimeout: no slot within `timeout`; the text says why.
            NotConfigured, Closed, QueueFull, WeightTooLarge: see there.
            Unavailable: Redis cannot be reached (with a timeout, or not at all).
            InvalidArgument: an argument is outside its range.
        """
        check_request(timeout, weight, priority)
        courier, session = self._connect()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Slot | SemaphoreError | None] = loop.create_future()

        def done(request: Request) -> None:
            courier.deliver(loop, partial(_settle, answer, request.outcome))

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
        if outcome is None:
            raise await self._timed_out(courier, session, request)
        if isinstance(outcome, WouldWait):
            raise AcquireTimeout(f"no free slot of {self.name}") from None
        if not isinstance(outcome, Slot):
            raise outcome
        return outcome

    async def try_acquire(self, *, weight: int = 1) -> Slot | None:
        """Take a slot if one is free and nobody waits for it; None otherwise. One round trip.

        Raises:
            NotConfigured, Closed, WeightTooLarge, Unavailable: see there.
        """
        try:
            return await self.acquire(timeout=0, weight=weight)
        except AcquireTimeout:
            return None

    async def release(self, slot: Slot) -> bool:
        """Give a slot back and wait until Redis knows. One round trip, repeated until it gets through.

        Returns:
            Whether Redis still had the slot. False: it was released before, or had been lost; nothing has changed then.
        """
        courier, _ = self._connect()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[int] = loop.create_future()
        slot.give_back(lambda code: courier.deliver(loop, partial(_settle, answer, code)))
        return await answer == 1

    def slot(self, *, timeout: float | None = None, weight: int = 1, priority: int = 0) -> _Block:
        """Hold a slot for the time of an ``async with`` block. Arguments and errors are those of `acquire`.

        The block gets the `Slot`. If the slot is lost the block is cancelled and `SlotLost` raised. Leaving the block
        gives the slot back at once without waiting for Redis to say so; the release is repeated until it gets through.
        """
        check_request(timeout, weight, priority)
        return _Block(self, timeout, weight, priority)

    async def __aenter__(self) -> Slot:
        """Hold a slot for the time of the block; see `slot`."""
        block = self.slot()
        slot = await block.__aenter__()
        self._blocks.setdefault(_this_task(), []).append(block)
        return slot

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = _this_task()
        block = self._blocks[task].pop()
        if not self._blocks[task]:
            del self._blocks[task]
        await block.__aexit__(exc_type, exc, trace)

    @overload
    async def call(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, or await a coroutine function, while holding a slot. Errors are those of `slot`."""
        async with self.slot():
            result = fn(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

    async def statistics(self) -> Statistics:
        """Look at the semaphore as it is now. One round trip.

        Raises:
            Unavailable: Redis cannot be reached.
        """
        courier, session = self._connect()
        snapshot = _seen(courier, await _look(courier, session, 0))
        return Statistics(
            name=self.name,
            limit=snapshot.config.limit if snapshot.config else None,
            state=snapshot.config.state if snapshot.config else None,
            held=snapshot.held,
            waiting=snapshot.waiter_count,
            held_here=len(session.held),
            waiting_here=session.waiting_here,
            totals=snapshot.counters,
        )

    def __repr__(self) -> str:
        return f"<AsyncSemaphore {self.name} at {without_password(self._url)}>"

    def _connect(self) -> tuple[Courier, Session]:
        courier = courier_to(self._url)
        return courier, courier.session(self.name, self._config, self._cap)

    async def _timed_out(self, courier: Courier, session: Session, request: Request) -> SemaphoreError:
        """Withdraw a request whose time is up, and say what stood in its way."""
        waited = asyncio.get_running_loop().time() - request.asked_at
        said = f"no slot of {self.name} within {waited:.1f}s"
        if courier.failure:
            courier.submit(session.abandon, request)
            return Unavailable(f"{said}: Redis {courier.shown_url} cannot be used: {courier.failure}")
        if not request.token:
            courier.submit(session.abandon, request)
            return AcquireTimeout(f"{said}: this process holds or awaits as many slots as it may")
        look = _look(courier, session, NAMED, request.token)  # before the request leaves the queue
        courier.submit(session.abandon, request)
        try:
            async with asyncio.timeout(EXPLANATION):
                snapshot = _seen(courier, await look)
        except (TimeoutError, Unavailable):
            return AcquireTimeout(said)
        return AcquireTimeout(f"{said}: {_reason(snapshot)}")


class _Block:
    """The time for which a slot is held; cancels its task when the slot is lost, as `asyncio.timeout` does."""

    def __init__(self, semaphore: AsyncSemaphore, timeout: float | None, weight: int, priority: int) -> None:
        self._semaphore = semaphore
        self._request = timeout, weight, priority
        self._slot: Slot | None = None
        self._task: asyncio.Task[Any] | None = None
        self._cancelling = 0
        self._cancelled = False

    async def __aenter__(self) -> Slot:
        if self._slot is not None:
            raise RuntimeError("a slot() block is entered once: make a new one")
        timeout, weight, priority = self._request
        self._slot = slot = await self._semaphore.acquire(timeout=timeout, weight=weight, priority=priority)
        self._task = _this_task()
        self._cancelling = self._task.cancelling()
        slot.watch(asyncio.get_running_loop(), self._cancel)
        return slot

    def _cancel(self) -> None:
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
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


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a slot is held by a task: use it inside a coroutine that a task runs")
    return task


def _settle(answer: asyncio.Future[Any], outcome: object) -> None:
    if not answer.done():
        answer.set_result(outcome)


def _look(courier: Courier, session: Session, top: int, token: str = "") -> asyncio.Future[Any]:
    """Ask for a snapshot now, to be read later by `_seen`."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    call = Call(INSPECT, session.keys, [top, token])
    courier.submit(session.query, call, lambda reply: courier.deliver(loop, partial(_settle, answer, reply)))
    return answer


def _seen(courier: Courier, reply: Any) -> Snapshot:
    if isinstance(reply, RedisError):
        raise Unavailable(f"Redis {courier.shown_url} cannot be used: {courier.failure or reply}")
    return parse_snapshot(reply)


def _reason(snapshot: Snapshot) -> str:
    """Say in one line what a request was waiting for."""
    if snapshot.config is None:
        return "its configuration has vanished from Redis"
    if snapshot.config.state is not State.ACTIVE:
        return f"its state is {snapshot.config.state}, so nothing is granted"
    if snapshot.config.limit == 0:
        return "its limit is 0, so nothing is granted"
    place = f"{_ordinal(snapshot.position)} of {snapshot.waiter_count} in line, " if snapshot.position else ""
    names = ", ".join(_who(holder) for holder in snapshot.holders)
    more = snapshot.holder_count - len(snapshot.holders)
    others = f" and {more} more" if more > 0 else ""
    return f"{place}limit {snapshot.config.limit} held by {names or 'nobody'}{others}"


def _who(holder: Holder) -> str:
    known = holder.identity
    if "pod" in known:
        return f"pod {known.get('namespace', '')}/{known['pod']}".replace("pod /", "pod ")
    return f"{known.get('app', 'process')} {known['pid']} on {known['host']}" if "pid" in known else holder.token


def _ordinal(n: int) -> str:
    suffix = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"
