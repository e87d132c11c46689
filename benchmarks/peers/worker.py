"""A worker process of one library. It runs in the library's own environment, so it needs nothing but Python and that.

Arguments: library, address of Redis, name of the semaphore, limit, lease (s), number of workers. It reads orders from
standard input and answers on standard output, a line of JSON each:

    {"start": moment, "hold": s, "shares": [jobs of each worker]}    ->  {"cpu": s, "jobs": [[asked, got, done], ...]}
    {"keep": true}: take a slot and keep it                          ->  {"got": moment}

Moments are those of CLOCK_MONOTONIC, in seconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    Block = Callable[[], AbstractAsyncContextManager[Any]]


def ours(url: str, name: str, limit: int, lease: int) -> Block:
    """Use this project's client."""
    from distributed_semaphore import AsyncSemaphore  # noqa: PLC0415

    return AsyncSemaphore(name, redis=url, limit=limit, lease=lease).slot


def py_redis_semaphore(url: str, name: str, limit: int, lease: int) -> Block:
    """Use its default way of waiting, BLPOP."""
    from redis.asyncio import Redis  # noqa: PLC0415
    from redis_semaphore import Semaphore, SemaphoreConfig  # type: ignore[import-not-found]  # noqa: PLC0415

    redis = Redis.from_url(url)
    config = SemaphoreConfig(name=name, limit=limit, lock_timeout=lease)
    return lambda: Semaphore(redis, config)


def asyncio_advanced_semaphores(url: str, name: str, limit: int, lease: int) -> Block:
    """Use the lease as the longest time between two heartbeats."""
    from asyncio_advanced_semaphores import RedisConfig, RedisSemaphore  # type: ignore[import-not-found]  # noqa: PLC0415

    config = RedisConfig(url=url)
    block: Block = RedisSemaphore(name=name, value=limit, heartbeat_max_interval=lease, config=config).cm
    return block


def steindamm(url: str, name: str, limit: int, lease: int) -> Block:
    """Use the lease as the time for which an unused semaphore lives on; it has no lease for a slot."""
    from redis.asyncio import Redis  # noqa: PLC0415
    from steindamm import AsyncSemaphore  # type: ignore[import-not-found]  # noqa: PLC0415

    redis = Redis.from_url(url, socket_timeout=None)  # it waits in one BLPOP; redis-py would give up after 5 s
    return lambda: AsyncSemaphore.create(name=name, capacity=limit, expiry=lease, max_sleep=0, connection=redis)


def self_limiters(url: str, name: str, limit: int, lease: int) -> Block:
    """Use the lease as the time for which an unused semaphore lives on; it has no lease for a slot."""
    from self_limiters import Semaphore  # type: ignore[import-not-found]  # noqa: PLC0415

    return lambda: Semaphore(name=name, capacity=limit, max_sleep=0, expiry=lease, redis_url=url)


LIBRARIES: dict[str, Callable[[str, str, int, int], Block]] = {
    "ours": ours,
    "py-redis-semaphore": py_redis_semaphore,
    "asyncio-advanced-semaphores": asyncio_advanced_semaphores,
    "steindamm": steindamm,
    "self-limiters": self_limiters,
}


async def main(library: str, *arguments: str) -> None:
    """Do a round of jobs, say "ready", then do what is ordered."""
    logging.basicConfig(level=logging.ERROR)
    url, name, limit, lease, workers = arguments
    block = LIBRARIES[library](url, name, int(limit), int(lease))
    await asyncio.gather(*(_work(block, 1, 0.0) for _ in range(int(workers))))
    _say({"ready": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        order = json.loads(line)
        if "keep" in order:
            kept = block()
            await kept.__aenter__()
            _say({"got": time.monotonic()})
            continue
        await asyncio.sleep(order["start"] - time.monotonic())
        cpu = time.process_time()
        jobs = await asyncio.gather(*(_work(block, share, order["hold"]) for share in order["shares"]))
        _say({"cpu": time.process_time() - cpu, "jobs": [job for own in jobs for job in own]})


async def _work(block: Block, jobs: int, hold: float) -> list[tuple[float, float, float]]:
    log = []
    for _ in range(jobs):
        asked = time.monotonic()
        async with block():
            got = time.monotonic()
            await asyncio.sleep(hold)
            done = time.monotonic()
        log.append((asked, got, done))
    return log


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
