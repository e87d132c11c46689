"""Recovery: how long a crashed holder's slot is missing.

Eight processes hold one semaphore each, with a lease of 2 s, and are killed (SIGKILL) at moments that are spread over
the time between two renewals. Another process waits for all eight.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING

from benchmarks.outcome import Column, Outcome, at_most
from benchmarks.workers import hear, processes

from distributed_semaphore import AsyncSemaphore

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.server import Bench

TITLE = "Recovery after a crash"
LEASE = 2.0
HOLDERS = 8
BETWEEN = LEASE / 3 / HOLDERS
"""Seconds between two kills: together they cover the time between two renewals."""
SETTLE = 1.0
"""Seconds for which all hold and wait before the first kill, so that every holder has renewed."""


def measure(bench: Bench) -> Outcome:
    """Kill the holders one after another."""
    bench.say(f"{HOLDERS} holders are killed, {LEASE:.0f} s later their slots are back")
    arguments = [(bench.url, [f"bench/recovery-{number}"]) for number in range(HOLDERS)]
    everything = (bench.url, [name for _, names in arguments for name in names])
    with processes(_run, [everything, *arguments]) as (waiter, *holders):
        for connection in (waiter, *holders):
            hear(connection)
        for connection in holders:
            connection.send("acquire")
            hear(connection)
        waiter.send("acquire")
        time.sleep(SETTLE)
        killed = []
        for connection in holders:
            connection.send("pid")
            pid = hear(connection)
            killed.append(time.monotonic())
            os.kill(pid, signal.SIGKILL)
            time.sleep(BETWEEN)
        got = dict(hear(waiter) for _ in holders)
        waiter.send("end")
    taken = sorted(got[name] - moment for (_, (name,)), moment in zip(arguments, killed, strict=True))
    return Outcome(
        load=f"{HOLDERS} crashes under a lease of {LEASE:.0f} s; from SIGKILL to the grant of the waiter.",
        columns={"fastest_s": Column("fastest s", 2), "slowest_s": Column("slowest s", 2)},
        rows=[{"fastest_s": round(taken[0], 3), "slowest_s": round(taken[-1], 3)}],
        bars=[at_most("a crashed holder's slot is back within lease + 0.1 s", taken[-1], LEASE + 0.1, " s")],
    )


def _run(connection: Connection, url: str, names: list[str]) -> None:
    asyncio.run(_take_part(connection, url, names))


async def _take_part(connection: Connection, url: str, names: list[str]) -> None:
    """Ask for a slot of each semaphore when told, say when each came; go on until told to end, or killed."""
    semaphores = [AsyncSemaphore(name, redis=url, limit=1, lease=LEASE) for name in names]
    for semaphore in semaphores:
        await semaphore.release(await semaphore.acquire())

    async def hold(semaphore: AsyncSemaphore) -> None:
        await semaphore.acquire()
        connection.send((semaphore.name, time.monotonic()))

    connection.send("ready")
    await asyncio.to_thread(connection.recv)
    holding = [asyncio.create_task(hold(semaphore)) for semaphore in semaphores]
    if await asyncio.to_thread(connection.recv) == "pid":
        connection.send(os.getpid())
        await asyncio.to_thread(connection.recv)
    await asyncio.wait(holding)
