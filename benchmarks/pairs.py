"""Pairs: what an uncontended acquire and its release cost, many at once and one alone.

Workers take slots of a semaphore that has more than enough of them and give them back at once, waiting until Redis has
confirmed both. One pair alone is timed against two PINGs with plain redis.asyncio, turn and turn about.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.outcome import Column, Outcome, at_least, at_most
from benchmarks.workers import hear, processes, start_signal, start_together
from redis.asyncio import Redis

from distributed_semaphore import AsyncSemaphore

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.server import Bench

TITLE = "Uncontended pairs"
SECONDS = 3.0
WORKERS = 200
LIMIT = 100_000
ALONE = 3000


def measure(bench: Bench) -> Outcome:
    """Measure the rate of one and of three processes, then one pair alone."""
    rates = {}
    for count in (1, 3):
        bench.say(f"pairs from {count} process{'es' * (count > 1)}")
        with processes(_run_many, [(bench.url,)] * count) as connections:
            start_together(connections)
            rates[count] = sum(hear(connection) for connection in connections) / SECONDS
    bench.say("one pair alone")
    with processes(_run_one, [(bench.url,)]) as (connection,):
        start_together([connection])
        pair, block, pings = hear(connection)
    rows = [
        {"what": "pairs/s from 1 process", "figure": round(rates[1])},
        {"what": "pairs/s from 3 processes", "figure": round(rates[3])},
        {"what": "one pair alone, µs", "figure": round(pair * 1e6)},
        {"what": "one `async with` alone, µs", "figure": round(block * 1e6)},
        {"what": "two plain PINGs, µs", "figure": round(pings * 1e6)},
    ]
    return Outcome(
        load=f"{WORKERS} workers a process, {SECONDS:.0f} s; then one worker, {ALONE:,} pairs, medians.",
        columns={"what": Column(""), "figure": Column("median")},
        rows=rows,
        bars=[
            at_least("≥ 25,000 pairs/s from 3 processes", rates[3], 25_000, "/s", 0),
            at_most("one pair ≤ 2.5 of two plain PINGs", pair / pings, 2.5),
        ],
    )


def _run_many(connection: Connection, url: str) -> None:
    asyncio.run(_many(connection, url))


async def _many(connection: Connection, url: str) -> None:
    semaphore = AsyncSemaphore("bench/pairs", redis=url, limit=LIMIT, lease=10)
    end = time.monotonic()

    async def worker() -> int:
        pairs = 0
        while True:
            await semaphore.release(await semaphore.acquire())
            if time.monotonic() > end:
                return pairs
            pairs += 1

    await asyncio.gather(*(worker() for _ in range(WORKERS)))
    end = await start_signal(connection) + SECONDS
    connection.send(sum(await asyncio.gather(*(worker() for _ in range(WORKERS)))))


def _run_one(connection: Connection, url: str) -> None:
    asyncio.run(_one(connection, url))


async def _one(connection: Connection, url: str) -> None:
    semaphore = AsyncSemaphore("bench/pair", redis=url, limit=LIMIT, lease=10)
    async with Redis.from_url(url) as redis:
        await redis.ping()
        async with semaphore:
            pass
        await start_signal(connection)
        pairs: list[float] = []
        blocks: list[float] = []
        pings: list[float] = []
        for _ in range(ALONE):
            moments = [time.perf_counter()]
            await semaphore.release(await semaphore.acquire())
            moments.append(time.perf_counter())
            await redis.ping()
            await redis.ping()
            moments.append(time.perf_counter())
            async with semaphore:
                pass
            moments.append(time.perf_counter())
            await asyncio.sleep(0)
            for log, start, end in zip((pairs, pings, blocks), moments, moments[1:], strict=False):
                log.append(end - start)
    connection.send((median(pairs), median(blocks), median(pings)))
