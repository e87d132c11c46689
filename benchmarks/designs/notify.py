"""Design 4: design 3 with notices. Each release wakes every waiter of every process to look; polls are the fallback."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from benchmarks.designs.fifo import LEAVE, Fifo

LEAVE_AND_TELL = f"{LEAVE}redis.call('PUBLISH', KEYS[4], '')\n"


class Notify(Fifo):
    """One channel a semaphore, one subscriber a process."""

    poll = 0.250
    leave_script = LEAVE_AND_TELL

    async def open(self, url: str, name: str, limit: int, lease: float) -> None:
        """Connect and listen."""
        await super().open(url, name, limit, lease)
        channel = f"{name}:released"
        self._keys.append(channel)
        self._messages = self._redis.pubsub(ignore_subscribe_messages=True)
        await self._messages.subscribe(channel)
        self._listener = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for _ in self._messages.listen():
            change, self._change = self._change, asyncio.Event()
            change.set()

    async def close(self) -> None:
        """Stop listening and close the connections."""
        self._listener.cancel()
        with suppress(asyncio.CancelledError):
            await self._listener
        await self._messages.aclose()
        await super().close()
