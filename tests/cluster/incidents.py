"""Incidents as they happen to real clients of one semaphore, and what must be seen of each: all of it, no more.

Those here leave Redis and the operator alone, so that one operator sees them all side by side.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from distributed_semaphore import AsyncSemaphore, QueueFull, Slot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from tests.cluster.evidence import Conditions

Stage: TypeAlias = "Callable[[AsyncSemaphore, str], AbstractAsyncContextManager[None]]"
"""Takes a semaphore and the address of Redis; the block around which it stands begins when the incident is on."""

STUCK: Final[Conditions] = {"LongWait": ("False", "Stuck")}


@dataclass(frozen=True)
class Incident:
    """What happens, and what is to be seen of it."""

    stage: Stage
    spec: dict[str, Any]
    conditions: Conditions = field(default_factory=dict)
    """Those that differ from `CALM`."""
    events: tuple[tuple[str, str], ...] = ()
    """Type and reason of every Event, sorted."""
    trouble: dict[str, float] = field(default_factory=dict)
    """Counters of what should not happen, as far as they have counted anything."""
    alerts: frozenset[str] = frozenset()
    """Alerts of the chart that fire if it stays so."""


CLIENT: Final = """
import os, signal, sys, time
offset, what, name, url = float(sys.argv[1]), *sys.argv[2:]
time.time = lambda real=time.time: real() + offset
time.time_ns = lambda real=time.time_ns: real() + int(offset * 1e9)
from distributed_semaphore import Semaphore

def crash():
    Semaphore(name, redis=url).acquire()
    os.kill(os.getpid(), signal.SIGKILL)

def hold():
    with Semaphore(name, redis=url) as slot:
        print("holds", flush=True)
        time.sleep(1.6)
        slot.check()

if what == "crash":
    for _ in range(5):
        child = os.fork()
        if not child:
            crash()
        os.waitpid(child, 0)
else:
    hold()
"""


async def client(offset: float, what: str, semaphore: AsyncSemaphore, url: str) -> asyncio.subprocess.Process:
    """Start a process whose clock is off by so many seconds."""
    arguments = ("-c", CLIENT, str(offset), what, semaphore.name, url)
    return await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)


@contextlib.asynccontextmanager
async def requests(semaphore: AsyncSemaphore, *weights: int) -> AsyncIterator[list[asyncio.Task[Slot]]]:
    """Give requests that hold or wait, in the order of their arrival; none is left over."""
    tasks = []
    try:
        for weight in weights:
            tasks.append(asyncio.create_task(semaphore.acquire(weight=weight)))
            await asyncio.sleep(0.05)
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Slot):
                outcome.give_back()


def standing(*weights: int) -> Stage:
    """Let requests come one after the other, of which those that get a slot keep it."""

    @contextlib.asynccontextmanager
    async def stage(semaphore: AsyncSemaphore, _: str) -> AsyncIterator[None]:
        async with requests(semaphore, *weights):
            yield

    return stage


@contextlib.asynccontextmanager
async def slow_downstream(semaphore: AsyncSemaphore, _: str) -> AsyncIterator[None]:
    """Six workers share one slot, and each call takes half a second."""

    async def work() -> None:
        while True:
            async with semaphore:
                await asyncio.sleep(0.5)

    workers = [asyncio.create_task(work()) for _ in range(6)]
    try:
        yield
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


@contextlib.asynccontextmanager
async def burst(semaphore: AsyncSemaphore, _: str) -> AsyncIterator[None]:
    """Sixty at once, where forty may wait; whoever has got in works on."""
    full = asyncio.Event()

    async def work() -> bool:
        try:
            async with semaphore:
                await full.wait()
        except QueueFull:
            return False
        return True

    workers = [asyncio.create_task(work()) for _ in range(60)]
    while sum(worker.done() for worker in workers) < 18:
        await asyncio.sleep(0.02)
    full.set()
    assert sum(await asyncio.gather(*workers)) == 42
    yield


@contextlib.asynccontextmanager
async def crash_loop(semaphore: AsyncSemaphore, url: str) -> AsyncIterator[None]:
    """Five processes, one after the other, die with a slot, while others work."""
    crashing = await client(0, "crash", semaphore, url)
    done = 0
    while crashing.returncode is None:
        async with semaphore:
            done += 1
        await asyncio.sleep(0.02)
    assert crashing.returncode == 0
    assert done > 2
    while (await semaphore.statistics()).held:  # the last lease runs out
        await asyncio.sleep(0.05)
    yield


@contextlib.asynccontextmanager
async def wrong_clocks(semaphore: AsyncSemaphore, url: str) -> AsyncIterator[None]:
    """A process five minutes ahead holds for longer than its lease; one five minutes behind waits for it."""
    ahead = await client(+300, "hold", semaphore, url)
    assert ahead.stdout
    assert await ahead.stdout.readline() == b"holds\n"
    behind = await client(-300, "hold", semaphore, url)
    assert behind.stdout
    assert await behind.stdout.readline() == b"holds\n"
    assert await ahead.wait() == 0
    async with semaphore:  # behind the one behind
        assert await behind.wait() == 0
    yield


SIDE_BY_SIDE: Final = {
    "limit-0": Incident(
        standing(1, 1),
        {"limit": 0, "alerts": {"queueStuckAfter": "1s"}},
        {"QueueStuck": ("True", "LimitZero"), **STUCK},
        events=(("Normal", "LimitZero"),),
    ),
    "wedged-holder": Incident(
        standing(1, 1),
        {"limit": 1, "lease": "1s", "maxHold": "1s", "alerts": {"queueStuckAfter": "1s"}},
        {
            "QueueStuck": ("True", "HoldersNotReleasing"),
            "HolderOverdue": ("True", "MaxHoldExceeded"),
            **STUCK,
        },
        events=(("Warning", "HoldersNotReleasing"), ("Warning", "MaxHoldExceeded")),
        alerts=frozenset({"SemaphoreQueueStuck", "SemaphoreHolderOverdue"}),
    ),
    "heavy-head": Incident(
        standing(2, 2, 1),
        {"limit": 3, "alerts": {"queueStuckAfter": "1s"}},
        {"QueueStuck": ("True", "HeadTooHeavy"), **STUCK},
        events=(("Warning", "HeadTooHeavy"),),
        alerts=frozenset({"SemaphoreQueueStuck"}),
    ),
    "slow-downstream": Incident(
        slow_downstream,
        {"limit": 1, "alerts": {"queueStuckAfter": "20s", "longWaitAfter": "1s"}},
        {"QueueStuck": ("False", "Moving"), "LongWait": ("True", "LimitTooLow")},
        events=(("Warning", "LimitTooLow"),),
        alerts=frozenset({"SemaphoreLongWait"}),
    ),
    "burst": Incident(burst, {"limit": 2, "maxWaiting": 40}, trouble={"refused": 18}),
    "crash-loop": Incident(crash_loop, {"limit": 2, "lease": "1s"}, trouble={"expired": 5}),
    "wrong-clocks": Incident(wrong_clocks, {"limit": 1, "lease": "1s"}),
}
