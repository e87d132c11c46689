"""Weights: a request of weight 8 in a stream of weight 1.

Sixty workers pass 10 slots on among themselves, one each; now and then a request comes that needs 8 at once. It waits
for those before it and then for 8 slots to come free. Turn-overs are the grants of others from its asking to its own.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.outcome import Column, Outcome, at_most
from benchmarks.workers import hear, processes, start_signal, start_together

from distributed_semaphore import AsyncSemaphore

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.server import Bench

TITLE = "A heavy request among light ones"
LIMIT = 10
WEIGHT = 8
PROCESSES = 3
WORKERS = 20
HOLD = 0.010
PAUSE = 0.1
"""Seconds between two heavy requests."""
SECONDS = 6.0
MARGIN = 0.005
"""Requests that are less than this many seconds apart have no order that anybody could know."""


class Grant(NamedTuple):
    """A request that was granted; times of the monotonic clock."""

    fence: int
    asked: float
    got: float


def measure(bench: Bench) -> Outcome:
    """Run the stream, and the heavy requests in one more process."""
    bench.say(f"weight {WEIGHT} among weight 1 for {SECONDS:.0f} s")
    with processes(_run, [(bench.url, WEIGHT, 1), *[(bench.url, 1, WORKERS)] * PROCESSES]) as (heavy, *light):
        start_together([heavy, *light])
        heavies = [Grant(*grant) for grant in hear(heavy)]
        lights = [Grant(*grant) for connection in light for grant in hear(connection)]
    turnovers, overtakes = [], []
    for request in heavies:
        before = [grant for grant in lights if request.asked < grant.got and grant.fence < request.fence]
        turnovers.append(len(before))
        overtakes.append(sum(grant.asked > request.asked + MARGIN for grant in before))
    rows = [
        _row(1, lights),
        {**_row(WEIGHT, heavies), "turnovers": median(turnovers), "most_turnovers": max(turnovers)},
    ]
    others = PROCESSES * WORKERS
    return Outcome(
        load=f"{LIMIT} slots, {PROCESSES} processes of {WORKERS} workers of weight 1, holding {HOLD * 1e3:.0f} ms, "
        f"and {len(heavies)} requests of weight {WEIGHT}.",
        columns={
            "weight": Column("weight"),
            "grants": Column("grants"),
            "p50_ms": Column("wait p50 ms"),
            "max_ms": Column("longest ms"),
            "turnovers": Column("turn-overs, median"),
            "most_turnovers": Column("most"),
        },
        rows=rows,
        bars=[
            at_most("overtaken by lighter requests that asked later: 0", max(overtakes), 0, " times at most", 0),
            at_most(
                f"each of {others} others goes first at most once", max(turnovers), others, " turn-overs at most", 0
            ),
        ],
    )


def _row(weight: int, grants: list[Grant]) -> dict[str, Any]:
    waits = [grant.got - grant.asked for grant in grants]
    return {
        "weight": weight,
        "grants": len(grants),
        "p50_ms": round(median(waits) * 1e3, 1),
        "max_ms": round(max(waits) * 1e3, 1),
        "turnovers": "",
        "most_turnovers": "",
    }


def _run(connection: Connection, url: str, weight: int, workers: int) -> None:
    asyncio.run(_work(connection, url, weight, workers))


async def _work(connection: Connection, url: str, weight: int, workers: int) -> None:
    semaphore = AsyncSemaphore("bench/weights", redis=url, limit=LIMIT, lease=10)
    await semaphore.release(await semaphore.acquire())
    end = await start_signal(connection) + SECONDS
    grants: list[Grant] = []

    async def worker() -> None:
        while (asked := time.monotonic()) < end:
            async with semaphore.slot(weight=weight) as slot:
                grants.append(Grant(slot.fence, asked, time.monotonic()))
                await asyncio.sleep(HOLD)
            if weight > 1:
                await asyncio.sleep(PAUSE)

    await asyncio.gather(*(worker() for _ in range(workers)))
    connection.send([tuple(grant) for grant in grants])
