"""Order: overtakes in 100,000 grants, by the server's own numbers.

A request that has to wait gets a ticket from Redis, a grant gets a fence; both rise. So a grant is an overtake if a
later ticket has had an earlier fence. The workers note the fences of their grants; tickets are read from the queue in
Redis, again and again, while it turns over.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, cast

from benchmarks.outcome import Bar, Column, Outcome
from benchmarks.workers import hear, processes, start_signal, start_together

from distributed_semaphore import AsyncSemaphore
from distributed_semaphore.protocol import Keys

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from benchmarks.server import Bench

TITLE = "Order of grants"
GRANTS = 100_000
PROCESSES = 3
WORKERS = 400
LIMIT = 5
NAME = "bench/order"
SPARE = 2000
"""Grants beyond those that are judged: the first few need no ticket."""


def measure(bench: Bench) -> Outcome:
    """Let the workers pass slots on as fast as they can, and watch the queue."""
    bench.say(f"{GRANTS:,} grants to {PROCESSES} x {WORKERS} workers")
    queue = Keys.of(NAME).prefix + "queue"
    tickets: dict[str, float] = {}
    jobs = (GRANTS + SPARE) // PROCESSES
    with processes(_run, [(bench.url, jobs)] * PROCESSES) as connections:
        start = start_together(connections)
        ends = []
        for connection in connections:
            while not connection.poll(0.01):
                tickets.update(cast("list[tuple[str, float]]", bench.redis.zrange(queue, 0, -1, withscores=True)))
            ends.append(hear(connection))
    fences: dict[str, int] = {token: fence for _, own in ends for token, fence in own}
    seconds = max(end for end, _ in ends) - start
    judged = sorted((fence, tickets[token]) for token, fence in fences.items() if token in tickets)
    overtakes = count_overtakes([ticket for _, ticket in judged])
    doubles = len(fences) - len(set(fences.values()))
    row = {
        "grants": len(fences),
        "judged": len(judged),
        "overtakes": overtakes,
        "doubles": doubles,
        "grants_per_s": round(len(fences) / seconds),
    }
    return Outcome(
        load=f"{PROCESSES} processes of {WORKERS} workers, {LIMIT} slots, no work. Judged are grants whose ticket was "
        "seen in the queue.",
        columns={
            "grants": Column("grants"),
            "judged": Column("judged"),
            "overtakes": Column("overtakes"),
            "doubles": Column("fences given twice"),
            "grants_per_s": Column("grants/s"),
        },
        rows=[row],
        bars=[
            Bar(
                f"0 overtakes in {GRANTS:,} grants",
                f"{overtakes:,} in {len(judged):,}",
                overtakes == 0 and doubles == 0 and len(judged) >= GRANTS,
            )
        ],
    )


def count_overtakes(tickets: Sequence[float]) -> int:
    """Count, among the tickets in the order of their grants, those that a higher one was before."""
    highest, late = 0.0, 0
    for ticket in tickets:
        late += ticket < highest
        highest = max(highest, ticket)
    return late


def _run(connection: Connection, url: str, jobs: int) -> None:
    asyncio.run(_work(connection, url, jobs))


async def _work(connection: Connection, url: str, jobs: int) -> None:
    semaphore = AsyncSemaphore(NAME, redis=url, limit=LIMIT, lease=10)
    granted: list[tuple[str, int]] = []
    await semaphore.release(await semaphore.acquire())

    async def worker() -> None:
        while len(granted) < jobs:
            async with semaphore.slot() as slot:
                granted.append((slot.token, slot.fence))

    await start_signal(connection)
    await asyncio.gather(*(worker() for _ in range(WORKERS)))
    connection.send((time.monotonic(), granted))
