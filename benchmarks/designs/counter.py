"""Design 1: a counter. Above the limit the caller takes its count back and tries again. A crash leaks a slot."""

from __future__ import annotations

import asyncio

from benchmarks.designs.design import connect

POLL = 0.020


def counter_key(name: str) -> str:
    """Name the counter's key, for whoever wants to see what a crash left in it."""
    return f"{name}:count"


class Counter:
    """INCR to enter, DECR to leave; nothing knows who holds, so the lease is of no use to it."""

    async def open(self, url: str, name: str, limit: int, lease: float) -> None:  # noqa: ARG002
        """Connect."""
        self._redis = connect(url)
        self._key = counter_key(name)
        self._limit = limit
        await self._redis.ping()

    async def acquire(self) -> str:
        """Try every 20 ms."""
        while await self._redis.incr(self._key) > self._limit:
            await self._redis.decr(self._key)
            await asyncio.sleep(POLL)
        return self._key

    async def release(self, token: str) -> None:
        """Count down."""
        await self._redis.decr(token)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()
