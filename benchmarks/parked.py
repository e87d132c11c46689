"""Parked: what waiting costs Redis while nothing is released.

A process holds the only slot; another has one task that waits for it, then 1,000. What Redis is asked meanwhile is the
heartbeat of each process, however many of its tasks wait.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from benchmarks.outcome import Bar, Column, Outcome
from benchmarks.server import usage
from benchmarks.workers import hear, processes

from distributed_semaphore import AsyncSemaphore

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.server import Bench

TITLE = "Parked waiters"
COUNTS = 1, 1000
SECONDS = 7.0
SETTLE = 0.5


def measure(bench: Bench) -> Outcome:
    """Count what one waiter and what 1,000 waiters send."""
    rows = []
    for count in COUNTS:
        bench.redis.flushdb()
        with processes(_run, [(bench.url,)] * 2) as (holder, waiter):
            for connection, tasks in ((holder, 1), (waiter, count)):
                hear(connection)
                connection.send(tasks)
                hear(connection)
            time.sleep(SETTLE)
            bench.say(f"{count:,} parked for {SECONDS:.0f} s")
            before = usage(bench.redis)
            time.sleep(SECONDS)
            after = usage(bench.redis)
            for connection in (waiter, holder):
                connection.send("end")
        rows.append(
            {
                "waiters": count,
                "requests_per_s": round((after.requests - before.requests) / SECONDS, 2),
                "commands_per_s": round((after.commands - before.commands) / SECONDS, 1),
                "redis_cpu_ms_per_s": round((after.cpu - before.cpu) / SECONDS * 1e3, 2),
            }
        )
    one, many = (row["requests_per_s"] for row in rows)
    return Outcome(
        load=f"One process holds, one waits with all its tasks; counted for {SECONDS:.0f} s.",
        columns={
            "waiters": Column("waiters"),
            "requests_per_s": Column("requests/s", 1),
            "commands_per_s": Column("commands/s, with Lua's", 1),
            "redis_cpu_ms_per_s": Column("Redis CPU ms/s", 2),
        },
        rows=rows,
        bars=[
            Bar(
                f"{COUNTS[1]:,} waiters send no more requests than one (± one heartbeat)",
                f"{many:.1f}/s, {one:.1f}/s",
                (many - one) * SECONDS <= 2,  # either process may have one heartbeat more in the time
            )
        ],
    )


def _run(connection: Connection, url: str) -> None:
    asyncio.run(_wait(connection, url))


async def _wait(connection: Connection, url: str) -> None:
    semaphore = AsyncSemaphore("bench/parked", redis=url, limit=1, lease=30)
    connection.send("ready")
    count = await asyncio.to_thread(connection.recv)
    waiting = [asyncio.create_task(semaphore.acquire()) for _ in range(count)]
    await asyncio.sleep(0)
    await semaphore.statistics()  # which sees what was asked for before
    connection.send("parked")
    await asyncio.to_thread(connection.recv)
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
