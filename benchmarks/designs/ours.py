"""This project's client, used as its users do: a block around the work."""

from __future__ import annotations

from contextlib import AsyncExitStack

from distributed_semaphore import AsyncSemaphore


class Ours:
    """A release hands the slot to the first waiter, inside Redis, and wakes that one only."""

    async def open(self, url: str, name: str, limit: int, lease: float) -> None:
        """Declare the semaphore; it needs no Kubernetes for that."""
        self._semaphore = AsyncSemaphore(name, redis=url, limit=limit, lease=lease)
        self._blocks: dict[str, AsyncExitStack] = {}

    async def acquire(self) -> str:
        """Enter `async with semaphore.slot()`."""
        block = AsyncExitStack()
        slot = await block.enter_async_context(self._semaphore.slot())
        self._blocks[slot.token] = block
        return slot.token

    async def release(self, token: str) -> None:
        """Leave the block."""
        await self._blocks.pop(token).aclose()

    async def close(self) -> None:
        """Do nothing: connections belong to the process and end with it."""
