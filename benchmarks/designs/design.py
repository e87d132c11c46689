"""What the harness asks of a design, and the connection that the article's four share."""

from __future__ import annotations

from typing import Protocol

from redis.asyncio import Redis

CONNECTIONS = 1000
"""Most connections of a process: enough for each worker to have its own, so that no design waits for one."""


class Design(Protocol):
    """A semaphore as one process uses it: any number of its tasks acquire and release."""

    async def open(self, url: str, name: str, limit: int, lease: float) -> None:
        """Connect and load what Redis shall run. The lease is in seconds."""

    async def acquire(self) -> str:
        """Wait for a slot and give the token that releases it."""

    async def release(self, token: str) -> None:
        """Give the slot back."""

    async def close(self) -> None:
        """Close the connections."""


def connect(url: str) -> Redis:
    """Make the client of an article design: plain redis.asyncio; hiredis parses where it is installed."""
    return Redis.from_url(url, decode_responses=True, max_connections=CONNECTIONS)
