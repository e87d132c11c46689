"""Hand-off: from a release in one process to the holder in another.

Two processes pass the only slot of a semaphore to and fro, 1,000 times; each holds it for 3 ms and asks again at once.
In the same run a plain message goes the same way: one PUBLISH with redis.asyncio in one process, read in the other.
"""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from benchmarks.outcome import Column, Outcome, at_most
from benchmarks.workers import hear, processes, start_signal, start_together
from redis.asyncio import Redis

from distributed_semaphore import AsyncSemaphore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from benchmarks.server import Bench

TITLE = "Hand-off from process to process"
TIMES = 1000
HOLD = 0.003
"""Seconds; long enough for the other process to be in the queue."""


def measure(bench: Bench) -> Outcome:
    """Pass the slot, then the message."""
    bench.say("passing a slot between two processes")
    passed = latencies(pass_slot, bench.url)
    bench.say("passing a plain message between two processes")
    told = latencies(_pass_message, bench.url)
    rows = [_row("slot: release → holder", passed), _row("message: PUBLISH → reader", told)]
    return Outcome(
        load=f"Two processes, one slot, {TIMES:,} hand-offs, each held for {HOLD * 1e3:.0f} ms; "
        "in the same run a plain message by redis.asyncio.",
        columns={
            "what": Column(""),
            "p50_ms": Column("p50 ms", 2),
            "p99_ms": Column("p99 ms", 2),
            "max_ms": Column("max ms", 2),
        },
        rows=rows,
        bars=[
            at_most("hand-off p50 ≤ 1 ms", rows[0]["p50_ms"], 1, " ms"),
            at_most(f"longest of {TIMES:,} ≤ 5 ms", rows[0]["max_ms"], 5, " ms"),
        ],
        series={"slot_ms": [round(each * 1e3, 3) for each in passed], "message_ms": [round(t * 1e3, 3) for t in told]},
    )


def _row(what: str, seconds: Sequence[float]) -> dict[str, Any]:
    percentiles = quantiles(seconds, n=100, method="inclusive")
    ms = [percentiles[49] * 1e3, percentiles[98] * 1e3, max(seconds) * 1e3]
    return {"what": what, **dict(zip(("p50_ms", "p99_ms", "max_ms"), (round(each, 3) for each in ms), strict=True))}


def latencies(target: object, url: str) -> list[float]:
    """Give the sorted seconds between the end of each turn and the beginning of the next."""
    with processes(_run, [(target, url, number) for number in (0, 1)]) as connections:
        start_together(connections)
        turns: list[tuple[float, float]] = sorted(turn for connection in connections for turn in hear(connection))
    return sorted(got - done for (_, done), (got, _) in pairwise(turns))[-TIMES:]


def _run(connection: Connection, target: object, url: str, number: int) -> None:
    asyncio.run(target(connection, url, number))  # type: ignore[operator]


async def pass_slot(connection: Connection, url: str, _number: int) -> None:
    """Take the slot again and again, and tell from when to when it was held."""
    semaphore = AsyncSemaphore("bench/handoff", redis=url, limit=1, lease=10)
    await semaphore.release(await semaphore.acquire())
    await start_signal(connection)
    turns = []
    for _ in range(TIMES // 2 + 1):
        async with semaphore:
            got = time.monotonic()
            await asyncio.sleep(HOLD)
            turns.append((got, time.monotonic()))
    connection.send(turns)


async def _pass_message(connection: Connection, url: str, number: int) -> None:
    async with Redis.from_url(url) as redis, redis.pubsub(ignore_subscribe_messages=True) as messages:
        await messages.subscribe(f"bench:{number}")
        await messages.get_message(timeout=1)
        await start_signal(connection)
        turns = []
        if number == 0:
            await redis.publish("bench:0", "")
        async for _ in messages.listen():
            got = time.monotonic()
            await asyncio.sleep(HOLD)
            turns.append((got, time.monotonic()))
            await redis.publish(f"bench:{1 - number}", "")
            if len(turns) == TIMES // 2 + 1:
                break
        connection.send(turns)
