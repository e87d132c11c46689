"""Steps that the tests of the scripts share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from distributed_semaphore.protocol import Config, Keys, inspect

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from tests.redis.conftest import Process

GRANTED, QUEUED, CLOSED, FULL, TOO_HEAVY, NOT_CONFIGURED, WOULD_WAIT = 1, 2, -1, -2, -3, -4, -5

CONFIG = Config(limit=2, lease_ms=2000, uid="uid", generation=1)


async def fill(process: Process, slots: int = 2) -> list[str]:
    """Take every slot."""
    tokens = [process.token() for _ in range(slots)]
    for token in tokens:
        assert (await process.ask(token))[0] == GRANTED
    return tokens


async def queue(process: Process, n: int) -> list[str]:
    tokens = [process.token() for _ in range(n)]
    for token in tokens:
        assert (await process.ask(token))[0] == QUEUED
    return tokens


async def shown(redis: Redis, name: str):
    [snapshot] = await inspect(redis, [name])
    assert not isinstance(snapshot, Exception)
    return snapshot


async def wait_until_deaf(redis: Redis, process: Process) -> None:
    while (await redis.pubsub_numsub(process.keys.channel(process.client)))[0][1]:
        await asyncio.sleep(0.001)


async def lose_everything(redis: Redis, name: str) -> None:
    """Remove the semaphore's keys, as a flush or an empty restart does."""
    await redis.delete(*await redis.keys(Keys.of(name).prefix + "*"))


async def wait_for_the_end_of_the_reclaim(redis: Redis, name: str) -> None:
    while (await shown(redis, name)).reclaim_until:
        await asyncio.sleep(0.02)


async def expire(process: Process, token: str) -> None:
    """Let the lease of a slot run out, unnoticed by anybody."""
    await process.redis.zadd(process.keys.prefix + "holders", {token: 1}, xx=True)
