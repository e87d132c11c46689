"""The crash: two processes hold the only two slots and are killed; how long until a third, which waits, holds one."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import TYPE_CHECKING

from benchmarks.workers import hear, processes

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.designs import Design, Subject

LIMIT = 2
LEASE = 2.0
PATIENCE = 6.0
"""Seconds after which a slot counts as lost for ever: three leases."""
SETTLE = 0.1
"""Seconds that the waiter gets to enter the queue before the holders die."""


def run_crash(subject: Subject) -> float | None:
    """Give the seconds from SIGKILL of the holders to the grant of the waiter; None if it never comes."""
    with processes(_take_part, [(subject,)] * (LIMIT + 1)) as (waiter, *holders):
        for connection in (waiter, *holders):
            hear(connection)
        pids = []
        for connection in holders:
            connection.send("acquire")
            pids.append(hear(connection))
            hear(connection)
        waiter.send("acquire")
        hear(waiter)
        time.sleep(SETTLE)
        killed = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        got: float | None = hear(waiter) if waiter.poll(PATIENCE) else None
        waiter.send("end")
        return None if got is None else got - killed


def _take_part(connection: Connection, subject: Subject) -> None:
    asyncio.run(_take_part_async(connection, subject))


async def _take_part_async(connection: Connection, subject: Subject) -> None:
    """Get ready, say so; when told, ask for a slot, say when it came; when told, end (a holder never is)."""
    design = await subject.open(LIMIT, LEASE)
    await design.release(await design.acquire())
    connection.send("ready")
    await asyncio.to_thread(connection.recv)
    connection.send(os.getpid())
    holding = asyncio.create_task(_hold(connection, design))
    await asyncio.to_thread(connection.recv)
    holding.cancel()
    await asyncio.wait([holding])
    await design.close()


async def _hold(connection: Connection, design: Design) -> None:
    await design.acquire()
    connection.send(time.monotonic())
