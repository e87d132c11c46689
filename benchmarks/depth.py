"""Depth: what one release costs when 10, and when 10,000 wait.

The slot goes from waiter to waiter 200 times while the queue is about as long as that. Each holder is told when to give
it back, so that all that Redis does in the meantime is those releases, their grants, and now and then a heartbeat. The
queue is in one process, or in three whose waiters take turns.
"""

from __future__ import annotations

import asyncio
import time
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, cast

from benchmarks.outcome import Column, Outcome, at_most
from benchmarks.server import usage
from benchmarks.workers import hear, processes

from distributed_semaphore import AsyncSemaphore
from distributed_semaphore.protocol import Keys

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from benchmarks.server import Bench

    from distributed_semaphore import Slot
    from redis import Redis

TITLE = "Depth of the queue"
DEPTHS = 10, 100, 1000, 10_000
PROCESSES = 1, 3
RELEASES = 200


def measure(bench: Bench) -> Outcome:
    """Measure each depth with one process and with three."""
    rows: list[dict[str, Any]] = [{"waiters": depth} for depth in DEPTHS]
    for count in PROCESSES:
        with processes(_run, [(bench.url,)] * count) as connections:
            for row in rows:
                depth = row["waiters"]
                bench.say(f"{depth:,} waiters in {count} process{'es' * (count > 1)}")
                queue = Queue(bench.redis, connections, depth)
                commands, cpu = _cost(bench, queue, min(RELEASES, depth // 2))
                row[f"commands_{count}"], row[f"cpu_us_{count}"] = round(commands, 2), round(cpu * 1e6, 1)
                queue.end()
            for connection in connections:
                connection.send(("end", None))
    more = max(abs(row[f"commands_{n}"] - rows[0][f"commands_{n}"]) for n in PROCESSES for row in rows)
    return Outcome(
        load=f"{RELEASES} releases at each length of the queue, whose waiters are in one process or spread over three. "
        "The figures are those of one release with its grant and all that comes of it.",
        columns={
            "waiters": Column("waiters"),
            "commands_1": Column("1 process: commands", 1),
            "cpu_us_1": Column("Redis CPU µs"),
            "commands_3": Column("3 processes: commands", 1),
            "cpu_us_3": Column("Redis CPU µs"),
        },
        rows=rows,
        bars=[at_most("a release with any number of waiters: as many commands as with 10, ± 2", more, 2, " apart")],
    )


def _cost(bench: Bench, queue: Queue, batch: int) -> tuple[float, float]:
    """Give the commands and the CPU seconds of one release; the queue is filled up again after each batch."""
    commands, cpu = 0, 0.0
    for _ in range(RELEASES // batch):
        idle, before = usage(bench.redis), usage(bench.redis)
        for _ in range(batch):
            queue.release()
        after = usage(bench.redis)
        commands += after.commands - before.commands
        cpu += (after.cpu - before.cpu) - (before.cpu - idle.cpu)  # INFO costs too
        queue.add(batch)
    return commands / RELEASES, cpu / RELEASES


class Queue:
    """A queue for one slot, of waiters in several processes; one more holds the slot."""

    def __init__(self, redis: Redis, connections: list[Connection], depth: int) -> None:
        self._connections = connections
        self._turn = 0
        name = f"bench/depth-{len(connections)}-{depth}"
        for connection in connections:
            self._tell(connection, "open", name)
        self._holder = connections[0]
        self._tell(self._holder, "hold", None)
        self.add(min(depth, RELEASES))
        rest = depth - min(depth, RELEASES)
        for number, connection in enumerate(connections):
            self._tell(connection, "ask", rest // len(connections) + (number < rest % len(connections)))
        while redis.zcard(Keys.of(name).prefix + "queue") < depth:  # they ask 500 at a time
            time.sleep(0.01)

    def add(self, count: int) -> None:
        """Add waiters one by one, each in the next process."""
        for _ in range(count):
            self._tell(self._connections[self._turn], "ask", 1)
            self._turn = (self._turn + 1) % len(self._connections)

    def release(self) -> None:
        """Have the holder give the slot back, and wait until another holds it."""
        self._holder.send(("release", None))
        (holder, *_) = wait(self._connections)
        self._holder = cast("Connection", holder)
        hear(self._holder)

    def end(self) -> None:
        """Have all waiters leave, and then the holder."""
        for connection in self._connections:
            self._tell(connection, "leave", None)
        self._holder.send(("release", None))

    @staticmethod
    def _tell(connection: Connection, *order: object) -> None:
        connection.send(order)
        if (said := hear(connection)) != "done":
            raise ChildProcessError(f"a worker process said {said!r} to {order}")


def _run(connection: Connection, url: str) -> None:
    asyncio.run(_obey(connection, url))


async def _obey(connection: Connection, url: str) -> None:
    """Do as told: open a semaphore, hold it, ask so many times, release, leave, end."""
    semaphore = AsyncSemaphore("bench/depth", redis=url, limit=1, lease=30)
    held: list[Slot] = []
    tasks: set[asyncio.Task[None]] = set()

    async def ask() -> None:
        held.append(await semaphore.acquire())
        connection.send("got")

    while True:
        order, detail = await asyncio.to_thread(connection.recv)
        match order:
            case "open":
                semaphore = AsyncSemaphore(detail, redis=url, limit=1, lease=30)
            case "hold":
                held.append(await semaphore.acquire())
            case "ask":
                tasks.update(asyncio.create_task(ask()) for _ in range(detail))
                await asyncio.sleep(0)
                await semaphore.statistics()  # which sees what was asked for before
            case "release":
                await semaphore.release(held.pop())
                continue
            case "leave":
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                tasks.clear()
            case "end":
                return
        connection.send("done")
