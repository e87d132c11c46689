"""Depth: what one release costs when 10, and when 10,000 wait.

The slot goes from waiter to waiter while the queue is about as long as that. Each holder is told when to give it back,
so that all that Redis does in the meantime is those releases, what comes of them, and now and then a heartbeat. The
queue is in one process, or in three whose waiters take turns. The article's last design does the same as far as it can.
"""

from __future__ import annotations

import asyncio
import os
import time
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from benchmarks.designs import Subject
from benchmarks.outcome import Column, Outcome, at_most
from benchmarks.server import usage
from benchmarks.workers import hear, processes

from distributed_semaphore.protocol import Keys

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.server import Bench

TITLE = "Depth of the queue"
LEASE = 30.0


class Series(NamedTuple):
    """One way to wait, at several lengths of the queue."""

    key: str
    design: str
    processes: int
    depths: tuple[int, ...]
    releases: int
    hold: float = 0.0
    """Seconds between two releases, in which all who were woken by the first can look and lie down again."""


SERIES = (
    Series("ours_1", "ours", 1, (10, 100, 500, 1000, 10_000), 200),
    Series("ours_3", "ours", 3, (10, 100, 500, 1000, 10_000), 200),
    Series("notify_1", "notify", 1, (10, 100, 500), 10, hold=0.1),  # each waiter there needs a connection
)


def measure(bench: Bench) -> Outcome:
    """Measure each series at each length."""
    rows: dict[int, dict[str, Any]] = {}
    for series in SERIES:
        for depth in series.depths:
            bench.redis.flushdb()
            bench.say(f"{series.design}: {depth:,} waiters, {series.processes} process{'es' * (series.processes > 1)}")
            commands, cpu = _cost(bench, series, depth)
            empty = {f"{what}_{each.key}": "" for each in SERIES for what in ("commands", "cpu_us")}
            row = rows.setdefault(depth, {"waiters": depth, **empty})
            row |= {f"commands_{series.key}": round(commands, 2), f"cpu_us_{series.key}": round(cpu * 1e6)}
    ours = [series.key for series in SERIES if series.design == "ours"]
    few = rows[10]
    more = max(abs(row[f"commands_{key}"] - few[f"commands_{key}"]) for key in ours for row in rows.values())
    return Outcome(
        load="What Redis does for one release, its grant and all that comes of it; all waiters in one process or "
        "spread over three.",
        columns={
            "waiters": Column("waiters"),
            "commands_ours_1": Column("commands, 1 process", 1),
            "cpu_us_ours_1": Column("CPU µs"),
            "commands_ours_3": Column("commands, 3 processes", 1),
            "cpu_us_ours_3": Column("CPU µs"),
            "commands_notify_1": Column("FIFO + notify, 1 process"),
            "cpu_us_notify_1": Column("CPU µs"),
        },
        rows=[rows[depth] for depth in sorted(rows)],
        bars=[at_most("a release with any number of waiters: as many commands as with 10, ± 2", more, 2, " apart")],
        series={
            series.key: [[depth, rows[depth][f"commands_{series.key}"]] for depth in series.depths] for series in SERIES
        },
    )


def _cost(bench: Bench, series: Series, depth: int) -> tuple[float, float]:
    """Give the commands and the CPU seconds of one release; the queue is filled up again after each batch."""
    batch = min(series.releases, depth // 2)
    commands, cpu = 0, 0.0
    subject = Subject(series.design, bench.url, "bench/depth")
    with processes(_run, [(subject,)] * series.processes) as connections:
        queue = Queue(bench, series, connections)
        queue.fill(depth)
        for _ in range(series.releases // batch):
            queue.add(depth - queue.waiting)
            idle, before = usage(bench.redis), usage(bench.redis)
            for _ in range(batch):
                queue.release()
                time.sleep(series.hold)
            after = usage(bench.redis)
            commands += after.commands - before.commands
            cpu += (after.cpu - before.cpu) - (before.cpu - idle.cpu)  # INFO costs too
        for connection in connections:
            connection.send("end")
    return commands / series.releases, cpu / series.releases


class Queue:
    """A queue for one slot, of waiters in several processes; one more holds the slot."""

    def __init__(self, bench: Bench, series: Series, connections: list[Connection]) -> None:
        self.waiting = 0
        self._redis = bench.redis
        self._singly = series.releases
        self._holder, *_ = self._connections = connections
        ours = series.design == "ours"
        self._key = Keys.of("bench/depth").prefix + "queue" if ours else "bench/depth:queue"
        self._others = 0 if ours else 1  # its queue has the holder in it
        for connection in connections:
            hear(connection)
        self._holder.send(1)
        hear(self._holder)

    def fill(self, depth: int) -> None:
        """Bring the queue to its length; those who will be served come from each process in turn."""
        self.add(min(depth, self._singly))
        rest = depth - self.waiting
        for number, connection in enumerate(self._connections):
            connection.send(rest // len(self._connections) + (number < rest % len(self._connections)))
        self._await(depth)

    def add(self, count: int) -> None:
        """Add waiters one by one, each in the next process."""
        for _ in range(count):
            self._connections[self.waiting % len(self._connections)].send(1)
            self._await(self.waiting + 1)

    def release(self) -> None:
        """Have the holder give the slot back, and wait until another holds it."""
        self._holder.send("release")
        (holder, *_) = wait(self._connections)
        self._holder = cast("Connection", holder)
        hear(self._holder)
        self.waiting -= 1

    def _await(self, waiting: int) -> None:
        while self._redis.zcard(self._key) < waiting + self._others:
            time.sleep(0.001)
        self.waiting = waiting


def _run(connection: Connection, subject: Subject) -> None:
    asyncio.run(_obey(connection, subject))


async def _obey(connection: Connection, subject: Subject) -> None:
    """Ask so many times as told, say when a slot came, release when told; at the end leave all as it is."""
    design = await subject.open(1, LEASE)
    await design.release(await design.acquire())
    held: list[str] = []
    tasks: set[asyncio.Task[None]] = set()

    async def ask() -> None:
        held.append(await design.acquire())
        connection.send("got")

    connection.send("ready")
    while (order := await asyncio.to_thread(connection.recv)) != "end":
        if order == "release":
            await design.release(held.pop())
        else:
            tasks.update(asyncio.create_task(ask()) for _ in range(order))
    os._exit(0)  # without giving back what thousands hold and wait for
