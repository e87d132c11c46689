"""One worker process of the demo: several workers that call the licensed API, each call inside a slot.

Reads its orders from standard input, one a line, and answers on standard output, one JSON a line:

    run JOBS SECONDS   do so many jobs of that length, share them among the workers, report waits and holds
    go SECONDS         keep doing jobs of that length until `halt`
    halt               stop, report how many were done
    hold N             take N slots and keep them, renewing: a holder that does not work
    wait               ask for one slot, in the background
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from distributed_semaphore import AsyncSemaphore, SlotLost


class Worker:
    """Ten workers of one process, on the semaphore of one resource."""

    def __init__(self, semaphore: AsyncSemaphore, workers: int) -> None:
        self.semaphore = semaphore
        self.workers = workers
        self.halted = asyncio.Event()
        self.busy: list[asyncio.Task[Any]] = []
        self.kept: list[Any] = []

    async def run(self, jobs: int, seconds: float) -> dict[str, Any]:
        """Do so many jobs; report when each was held (monotonic, s) and how long it waited."""
        left = iter(range(jobs))
        holds: list[tuple[float, float]] = []
        waits: list[float] = []

        async def work() -> None:
            for _ in left:
                async with self.semaphore as slot:
                    start = time.monotonic()
                    await asyncio.sleep(seconds)
                    holds.append((start, time.monotonic()))
                    waits.append(slot.waited)

        start = time.monotonic()
        await asyncio.gather(*(work() for _ in range(self.workers)))
        return {"start": start, "end": time.monotonic(), "holds": holds, "waits": waits}

    def go(self, seconds: float) -> None:
        """Start working until further notice."""
        self.halted.clear()

        async def work() -> int:
            done = 0
            while not self.halted.is_set():
                try:
                    async with self.semaphore:
                        await asyncio.sleep(seconds)
                    done += 1
                except SlotLost:
                    continue
            return done

        self.busy = [asyncio.create_task(work()) for _ in range(self.workers)]

    async def halt(self) -> dict[str, Any]:
        """Stop after the job at hand; waiters leave the queue."""
        self.halted.set()
        done = await asyncio.gather(*self.busy)
        return {"done": sum(done)}

    async def hold(self, slots: int) -> dict[str, Any]:
        """Take slots and keep them."""
        self.kept = [await self.semaphore.acquire() for _ in range(slots)]
        return {"tokens": [slot.token for slot in self.kept]}


async def obey(worker: Worker) -> None:
    """Carry out orders until standard input ends."""
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with worker.semaphore:
        answer({"ready": True})
    while line := (await orders.readline()).decode().split():
        match line:
            case ["run", jobs, seconds]:
                answer(await worker.run(int(jobs), float(seconds)))
            case ["go", seconds]:
                worker.go(float(seconds))
                answer({"going": True})
            case ["halt"]:
                answer(await worker.halt())
            case ["hold", slots]:
                answer(await worker.hold(int(slots)))
            case ["wait"]:
                worker.busy.append(asyncio.create_task(worker.semaphore.acquire()))
                answer({"waiting": True})


def answer(said: dict[str, Any]) -> None:
    """Write one answer."""
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    namespace, name, workers = sys.argv[1:]
    asyncio.run(obey(Worker(AsyncSemaphore.from_resource(name, namespace), int(workers))))
