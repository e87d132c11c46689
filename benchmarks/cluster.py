"""Cluster: hand-off and pairs on a Redis Cluster of three nodes, beside one server.

Each semaphore lives on the node of its hash tag, and its messages go through sharded pub/sub. The hand-off is that of
the benchmark `handoff`; the pairs are those of 30 semaphores, which are spread over the nodes.
"""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.handoff import latencies, pass_slot
from benchmarks.outcome import Column, Outcome, at_most
from benchmarks.workers import hear, processes, start_signal, start_together

from distributed_semaphore import AsyncSemaphore
from distributed_semaphore.testing import RedisServer, find_servers
from redis import Redis

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

    from benchmarks.server import Bench

TITLE = "Redis Cluster"
NODES = 3
SLOTS = 16384
SEMAPHORES = 30
WORKERS = 120
SECONDS = 2.0
PATIENCE = 20.0


def measure(bench: Bench) -> Outcome:
    """Measure on one server, then on a cluster that lives as long as that."""
    rows = [_row(bench, "one server", bench.url)]
    with _cluster() as url:
        rows.append(_row(bench, f"cluster of {NODES} nodes", url))
    one, cluster = rows
    ratio = cluster["handoff_p50_ms"] / one["handoff_p50_ms"]
    return Outcome(
        load=f"1,000 hand-offs between two processes; then 3 processes of {WORKERS} workers, {SEMAPHORES} semaphores, "
        f"for {SECONDS:.0f} s.",
        columns={
            "where": Column(""),
            "handoff_p50_ms": Column("hand-off p50 ms", 2),
            "handoff_max_ms": Column("max ms", 2),
            "pairs_per_s": Column("pairs/s"),
        },
        rows=rows,
        bars=[at_most("hand-off p50 ≤ 1.25 of one server's", ratio, 1.25)],
    )


def _row(bench: Bench, where: str, url: str) -> dict[str, Any]:
    bench.say(f"hand-off, {where}")
    passed = latencies(pass_slot, url)
    bench.say(f"pairs, {where}")
    with processes(_run, [(url,)] * 3) as connections:
        start_together(connections)
        pairs = sum(hear(connection) for connection in connections)
    return {
        "where": where,
        "handoff_p50_ms": round(median(passed) * 1e3, 3),
        "handoff_max_ms": round(max(passed) * 1e3, 3),
        "pairs_per_s": round(pairs / SECONDS),
    }


@contextmanager
def _cluster() -> Iterator[str]:
    """Start the nodes, share the slots out, and wait until all agree."""
    with ExitStack() as stack:
        nodes = []
        for _ in range(NODES):
            bus = _free_port()
            options = ("--cluster-enabled", "yes", "--cluster-port", str(bus))
            node = stack.enter_context(RedisServer(find_servers().get("redis"), options))
            nodes.append((stack.enter_context(Redis(port=node.port, decode_responses=True)), node.port, bus))
        for number, (redis, _, _) in enumerate(nodes):
            first, last = SLOTS * number // NODES, SLOTS * (number + 1) // NODES - 1
            redis.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            for _, port, bus in nodes[:number]:
                redis.execute_command("CLUSTER", "MEET", "127.0.0.1", port, bus)
        deadline = time.monotonic() + PATIENCE
        while not all(_in_order(redis) for redis, _, _ in nodes):
            if time.monotonic() > deadline:
                raise ChildProcessError(f"the cluster has not come together within {PATIENCE:.0f} s")
            time.sleep(0.05)
        yield f"redis+cluster://127.0.0.1:{nodes[0][1]}"


def _in_order(redis: Redis) -> bool:
    """Tell whether a node sees every slot served and every other node."""
    said = str(redis.execute_command("CLUSTER", "INFO"))
    return "cluster_state:ok" in said and f"cluster_known_nodes:{NODES}" in said


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(connection: Connection, url: str) -> None:
    asyncio.run(_pairs(connection, url))


async def _pairs(connection: Connection, url: str) -> None:
    semaphores = [AsyncSemaphore(f"bench/{n}", redis=url, limit=WORKERS * 3, lease=10) for n in range(SEMAPHORES)]
    end = time.monotonic()

    async def worker(semaphore: AsyncSemaphore) -> int:
        pairs = 0
        while True:
            await semaphore.release(await semaphore.acquire())
            if time.monotonic() > end:
                return pairs
            pairs += 1

    async def everybody() -> int:
        return sum(await asyncio.gather(*(worker(semaphores[n % SEMAPHORES]) for n in range(WORKERS))))

    await everybody()
    end = await start_signal(connection) + SECONDS
    connection.send(await everybody())
