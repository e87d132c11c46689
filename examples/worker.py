"""A worker that calls a downstream which stands only so many calls at once.

export SEMAPHORE_REDIS_URL=redis://127.0.0.1:6379/0
python examples/worker.py
"""

import asyncio

from distributed_semaphore import AsyncSemaphore, SlotLost


async def main() -> None:
    """Make ten calls, never more at once than the resource allows."""
    semaphore = AsyncSemaphore.from_resource("licensed-api", "payments")

    async def call(number: int) -> None:
        try:
            async with semaphore.slot(timeout=30) as slot:
                print(f"call {number}: waited {slot.waited * 1000:.0f} ms, fence {slot.fence}")
                await asyncio.sleep(0.5)  # the call
        except SlotLost:
            print(f"call {number}: stopped, its slot was lost")

    await asyncio.gather(*(call(number) for number in range(10)))
    print(await semaphore.statistics())


if __name__ == "__main__":
    asyncio.run(main())
