"""A worker that calls a downstream which stands only so many calls at once, until SIGTERM.

    export SEMAPHORE_REDIS_URL=redis://127.0.0.1:6379/0
    python examples/worker/worker.py

Variables: SEMAPHORE (payments/licensed-api), TASKS that call side by side (5), SECONDS that a call takes (0.5).
"""

import asyncio
import os
import signal

from distributed_semaphore import AsyncSemaphore, SemaphoreError, SlotLost


async def work(semaphore: AsyncSemaphore, task: int, seconds: float) -> None:
    """Call again and again, each time with a slot."""
    while True:
        try:
            async with semaphore.slot() as slot:
                print(f"task {task} calls: waited {slot.waited * 1000:.0f} ms, fence {slot.fence}")
                await asyncio.sleep(seconds)  # the call
                print(f"task {task} has called, fence {slot.fence}")
        except SlotLost as error:
            print(f"task {task} was stopped: {error}")
        except SemaphoreError as error:  # no resource, no Redis, a full or closed queue: the text says which
            print(f"task {task} waits a second: {error}")
            await asyncio.sleep(1)


async def main() -> None:
    """Work until SIGTERM; then what is held is given back, and what waits leaves the queue."""
    semaphore = AsyncSemaphore(os.environ.get("SEMAPHORE", "payments/licensed-api"))
    tasks, seconds = int(os.environ.get("TASKS", "5")), float(os.environ.get("SECONDS", "0.5"))
    working = asyncio.gather(*(work(semaphore, task, seconds) for task in range(tasks)))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, working.cancel)
    try:
        await working
    except asyncio.CancelledError:
        print(await semaphore.statistics())


if __name__ == "__main__":
    asyncio.run(main())
