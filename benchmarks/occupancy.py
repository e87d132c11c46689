"""Occupancy: how full 200 slots are kept while 10,000 requests pass through them.

All requests are made at the start, a quarter of them in each of four processes. Holds are of uneven length, so that
slots come free one by one at any moment. A slot is empty from the moment that its holder begins to give it back until
the next one has it.
"""

from __future__ import annotations

import asyncio
import random
import time
from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.outcome import Column, Outcome, at_least, at_most
from benchmarks.workers import hear, processes, start_signal, start_together

from distributed_semaphore import AsyncSemaphore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from benchmarks.server import Bench

TITLE = "Occupancy"
LIMIT = 200
REQUESTS = 10_000
PROCESSES = 4
HOLD = 0.1, 0.5
"""Seconds, evenly spread."""
POINTS = 200
"""Of the picture."""


def measure(bench: Bench) -> Outcome:
    """Run the requests, then look at each moment."""
    floor = REQUESTS * sum(HOLD) / 2 / LIMIT
    bench.say(f"{REQUESTS:,} requests for {LIMIT} slots, about {floor:.0f} s")
    with processes(_run, [(bench.url, number) for number in range(PROCESSES)]) as connections:
        start = start_together(connections)
        holds: list[tuple[float, float]] = [hold for connection in connections for hold in hear(connection)]
    steps = held_over_time(holds)
    few = sorted(done for _, done in holds)[-LIMIT]  # from here on fewer are left than there are slots
    full = sorted(got for got, _ in holds)[LIMIT - 1]
    occupancy = mean_held(steps, start, few) / LIMIT
    row = {
        "occupancy_percent": round(occupancy * 100, 2),
        "once_full_percent": round(mean_held(steps, full, few) / LIMIT * 100, 2),
        "full_after_s": round(full - start, 3),
        "few_after_s": round(few - start, 2),
        "run_s": round(max(done for _, done in holds) - start, 2),
        "max_holders": max(held for _, held in steps),
    }
    edges = [start + (few - start) * point / POINTS for point in range(POINTS + 1)]
    return Outcome(
        load=f"{REQUESTS:,} requests made at once by {PROCESSES} processes, {LIMIT} slots, holds of "
        f"{HOLD[0] * 1e3:.0f} to {HOLD[1] * 1e3:.0f} ms. Occupancy is counted until fewer than {LIMIT} are left.",
        columns={
            "occupancy_percent": Column("occupancy %", 2),
            "once_full_percent": Column("once full %", 2),
            "full_after_s": Column("full after s", 2),
            "few_after_s": Column("few left after s", 1),
            "run_s": Column("run s", 1),
            "max_holders": Column("most held"),
        },
        rows=[row],
        bars=[
            at_least("occupancy ≥ 95 %", occupancy * 100, 95, " %"),
            at_most(f"never more than {LIMIT} holders", row["max_holders"], LIMIT, " at most", 0),
        ],
        series={
            "time_s": [round(edge - start, 3) for edge in edges[:-1]],
            "held": [round(mean_held(steps, since, until), 2) for since, until in pairwise(edges)],
        },
    )


def held_over_time(holds: Sequence[tuple[float, float]]) -> list[tuple[float, int]]:
    """Give each moment at which the number of held slots changes, with the new number."""
    changes = sorted([(got, 1) for got, _ in holds] + [(done, -1) for _, done in holds])
    held, steps = 0, []
    for moment, change in changes:
        held += change
        steps.append((moment, held))
    return steps


def mean_held(steps: Sequence[tuple[float, int]], since: float, until: float) -> float:
    """Give the mean number of held slots between two moments."""
    area, held, moment = 0.0, 0, since
    for change, now in steps:
        if change > since:
            area += held * (min(change, until) - moment)
            moment = min(change, until)
        if change >= until:
            break
        held = now
    return (area + held * (until - moment)) / (until - since)


def _run(connection: Connection, url: str, number: int) -> None:
    asyncio.run(_work(connection, url, number))


async def _work(connection: Connection, url: str, number: int) -> None:
    semaphore = AsyncSemaphore("bench/occupancy", redis=url, limit=LIMIT, lease=10)
    lengths = random.Random(number)
    await semaphore.release(await semaphore.acquire())

    async def job(length: float) -> tuple[float, float]:
        async with semaphore:
            got = time.monotonic()
            await asyncio.sleep(length)
            return got, time.monotonic()

    await start_signal(connection)
    jobs = (job(lengths.uniform(*HOLD)) for _ in range(REQUESTS // PROCESSES))
    connection.send(await asyncio.gather(*jobs))
