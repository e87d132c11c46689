"""Design 2: a sorted set of leases. Crash-safe, but whoever polls first after a release wins: unfair."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from benchmarks.designs.design import connect

POLL = 0.020

TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
  return 1
end
return 0
"""


class Polling:
    """A member is a holder's random token, its score the end of its lease by the server's clock."""

    async def open(self, url: str, name: str, limit: int, lease: float) -> None:
        """Connect."""
        self._redis = connect(url)
        self._take = self._redis.register_script(TAKE)
        self._key = f"{name}:holders"
        self._limit = limit
        self._lease_ms = round(lease * 1000)
        await self._redis.ping()

    async def acquire(self) -> str:
        """Try every 20 ms."""
        token = uuid4().hex
        while not await self._take(keys=[self._key], args=[token, self._limit, self._lease_ms]):  # noqa: ASYNC110  polling is the design
            await asyncio.sleep(POLL)
        return token

    async def release(self, token: str) -> None:
        """Take the token out."""
        await self._redis.zrem(self._key, token)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()
