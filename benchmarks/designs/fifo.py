"""Design 3: tickets. The first `limit` of the queue hold. Fair, but a freed slot idles until its next owner polls."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from uuid import uuid4

from benchmarks.designs.design import connect

ENTER = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[1], redis.call('INCR', KEYS[3]), ARGV[1])
redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[1])
"""
CHECK = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
  redis.call('ZREM', KEYS[1], dead)
  redis.call('ZREM', KEYS[2], dead)
end
local rank = redis.call('ZRANK', KEYS[1], ARGV[1])
if not rank then
  return -1
end
redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[1])
return rank < tonumber(ARGV[3]) and 1 or 0
"""
LEAVE = """
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
"""


class EntryExpiredError(Exception):
    """A waiter did not check for a whole lease and lost its place."""


class Fifo:
    """Holders and waiters are in a queue by ticket and in a set of leases by expiry."""

    poll = 0.020
    leave_script = LEAVE

    async def open(self, url: str, name: str, limit: int, lease: float) -> None:
        """Connect."""
        self._redis = connect(url)
        self._enter, self._check, self._leave = map(self._redis.register_script, (ENTER, CHECK, self.leave_script))
        self._keys = [f"{name}:queue", f"{name}:leases", f"{name}:ticket"]
        self._limit = limit
        self._lease_ms = round(lease * 1000)
        self._change = asyncio.Event()
        """Set when it is worth looking again; nobody does so here, and each wait for it lasts for the poll interval."""
        await self._redis.ping()

    async def acquire(self) -> str:
        """Draw a ticket and look every 20 ms whether it is among the first.

        Raises:
            EntryExpiredError: the process did not get round to look for a whole lease.
        """
        token = uuid4().hex
        await self._enter(keys=self._keys, args=[token, self._lease_ms])
        try:
            change = self._change  # taken before the look, so that no change is missed in between
            while not await self._holds(token):
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.poll):
                        await change.wait()
                change = self._change
        except BaseException:
            await self.release(token)
            raise
        return token

    async def _holds(self, token: str) -> bool:
        answer = await self._check(keys=self._keys, args=[token, self._lease_ms, self._limit])
        if answer < 0:
            raise EntryExpiredError(f"the entry of {token} expired: check more often than once a lease")
        return bool(answer)

    async def release(self, token: str) -> None:
        """Leave queue and leases."""
        await self._leave(keys=self._keys, args=[token])

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()
