"""Scenarios of public bug reports: waking and order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
from tests.redis.scenarios.actors import Prefork, shows, until
from tests.redis.scenarios.conftest import SOAK

from distributed_semaphore import AcquireTimeout, AsyncSemaphore
from distributed_semaphore.protocol import Config, declare

if TYPE_CHECKING:
    from redis.asyncio import Redis


async def test_slots_are_busy_until_fewer_wait_than_there_are(server, redis, name):
    """prefect#23183; argo-workflows#12039, #16606: a short queue that is long all the time idles no slot.

    Limit 20, 280 requests of 100 ms; limit 200, 2,800 of 2 s with SEMAPHORE_SOAK=1.
    """
    limit, hold = (200, 2.0) if SOAK else (20, 0.1)
    await declare(redis, name, Config(limit=limit, lease_ms=5000, uid="uid", generation=1))
    semaphore = AsyncSemaphore(name, redis=server.url)
    finished: list[float] = []

    async def work() -> None:
        async with semaphore:
            await asyncio.sleep(hold)
        finished.append(time.monotonic())

    began = time.monotonic()
    await asyncio.gather(*(work() for _ in range(14 * limit)))
    busy = 13 * limit * hold / (limit * (finished[13 * limit - 1] - began))
    assert busy > 0.6  # benchmarks/ measures it on a quiet machine


async def test_every_slot_is_taken_although_wake_ups_are_lost(server, redis, name, proxy):
    """redisson#5762: 30 % of the messages never arrive; the next heartbeat tells of the grant."""
    await declare(redis, name, Config(limit=3, lease_ms=1000, uid="uid", generation=1))
    semaphore = AsyncSemaphore(name, redis=proxy.url)
    elsewhere = AsyncSemaphore(name, redis=server.url)  # a client of its own: its releases have to wake the other
    proxy.drop_share = 0.3
    done = 0

    async def work(n: int) -> None:
        nonlocal done
        async with semaphore if n % 2 else elsewhere:
            await asyncio.sleep(0.005)
        done += 1

    async with asyncio.timeout(30):
        await asyncio.gather(*map(work, range(40)))
    assert done == 40
    assert proxy.dropped > 0
    await shows(semaphore, held=0, waiting=0)


async def test_the_queue_goes_on_while_subscription_and_commands_are_cut(redis, name, proxy):
    """redisson#6026, #7264; redis-py#1572: 100 waiters; their connections are reset again and again."""
    await declare(redis, name, Config(limit=4, lease_ms=2000, uid="uid", generation=1))
    semaphore = AsyncSemaphore(name, redis=proxy.url)

    async def work() -> None:
        async with semaphore:
            await asyncio.sleep(0.01)

    slots = [await semaphore.acquire() for _ in range(4)]
    tasks = [asyncio.create_task(work()) for _ in range(100)]
    await shows(semaphore, waiting=100)
    for slot in slots:
        await semaphore.release(slot)
    working = asyncio.gather(*tasks)
    for _ in range(5):
        proxy.cut()
        await asyncio.sleep(0.15)
    await asyncio.wait_for(working, 20)
    await shows(semaphore, held=0, waiting=0)
    again = await semaphore.acquire()
    others = [asyncio.create_task(semaphore.acquire()) for _ in range(4)]
    await shows(semaphore, waiting=1)
    await semaphore.release(again)
    for other in others:
        await semaphore.release(await asyncio.wait_for(other, 5))


async def listeners(redis: Redis, name: str, n: int) -> bool:
    """Whether the server knows of so many processes that listen."""
    return len(await redis.pubsub_channels(f"*{name}}}*")) == n


async def test_a_dead_head_is_dropped_and_the_next_is_granted_by_the_same_release(server, redis, name):
    """argo-workflows#8109; etcd#19597: the first in line is killed while it waits."""
    await declare(redis, name, Config(limit=1, lease_ms=2000, uid="uid", generation=1))
    semaphore = AsyncSemaphore(name, redis=server.url)
    async with Prefork() as clients:
        slot = await semaphore.acquire()
        head = await clients.start(name, server.url)
        await shows(semaphore, waiting=1)
        waiter = asyncio.create_task(semaphore.acquire())
        await shows(semaphore, waiting=2)
        clients.kill(head)
        await until(lambda: listeners(redis, name, 1))
        await semaphore.release(slot)
        second = await asyncio.wait_for(waiter, 10)
        assert (await semaphore.statistics()).totals.expired == 0  # nothing waited for a lease to end
        await semaphore.release(second)


async def test_a_stopped_head_delays_the_next_by_no_more_than_its_first_lease_and_gets_its_turn_back(
    server, redis, name
):
    """argo-workflows#8109: the first in line is stopped, not dead: its socket is open and its mailbox fills."""
    await declare(redis, name, Config(limit=1, lease_ms=1000, uid="uid", generation=1))
    semaphore = AsyncSemaphore(name, redis=server.url)
    async with Prefork() as clients:
        slot = await semaphore.acquire()
        head = await clients.start(name, server.url)
        await shows(semaphore, waiting=1)
        waiter = asyncio.create_task(semaphore.acquire())
        await shows(semaphore, waiting=2)
        os.kill(head, signal.SIGSTOP)
        await semaphore.release(slot)
        second = await asyncio.wait_for(waiter, 10)
        os.kill(head, signal.SIGCONT)
        await semaphore.release(second)
        await clients.holding(head)


async def test_a_waiter_beyond_its_own_patience_gets_a_typed_error_and_leaves(server, redis, name):
    """etcd#19597: whoever gives up is told so, and stands in nobody's way."""
    await declare(redis, name, Config(limit=1, lease_ms=1000, uid="uid", generation=1))
    semaphore = AsyncSemaphore(name, redis=server.url)
    async with semaphore:
        with pytest.raises(AcquireTimeout, match="1st of 1 in line"):
            await semaphore.acquire(timeout=0.2)
        await shows(semaphore, waiting=0)


async def test_a_heavy_request_is_granted_after_one_turn_over_of_a_light_stream(server, redis, name):
    """hazelcast (ISemaphore's Javadoc); airflow#29474; throttle#4: limit 10, a stream of weight 1, one of weight 8."""
    await declare(redis, name, Config(limit=10, lease_ms=2000, uid="uid", generation=1))
    semaphore = AsyncSemaphore(name, redis=server.url)
    turns = 0

    async def stream() -> None:
        nonlocal turns
        while True:
            async with semaphore:
                await asyncio.sleep(0.01)
            turns += 1

    streams = [asyncio.create_task(stream()) for _ in range(30)]
    await shows(semaphore, held=10)
    ahead = (await semaphore.statistics()).waiting
    before = turns
    async with semaphore.slot(weight=8, timeout=10):
        passed = turns - before
    for task in streams:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*streams)
    assert passed <= 30 + ahead  # those that held, and those that stood in line before it
    await shows(semaphore, held=0, waiting=0)


async def test_who_leaves_the_queue_and_comes_back_stands_last(server, redis, name):
    """solid_queue#237; gitlab#481413: within a priority the order is that of arrival; a new request arrives last."""
    await declare(redis, name, Config(limit=1, lease_ms=2000, uid="uid", generation=1))
    semaphore = AsyncSemaphore(name, redis=server.url)
    order: list[str] = []

    async def work(who: str, priority: int = 0) -> None:
        async with semaphore.slot(priority=priority):
            order.append(who)

    async with semaphore:
        first = asyncio.create_task(work("left"))
        await shows(semaphore, waiting=1)
        tasks = [asyncio.create_task(work("stayed"))]
        await shows(semaphore, waiting=2)
        first.cancel()
        await shows(semaphore, waiting=1)
        tasks.append(asyncio.create_task(work("back")))
        await shows(semaphore, waiting=2)
        tasks.append(asyncio.create_task(work("urgent", priority=5)))
        await shows(semaphore, waiting=3)
    await asyncio.gather(*tasks)
    assert order == ["urgent", "stayed", "back"]


async def test_a_waiter_older_than_every_lease_is_served_in_its_place(server, redis, name):
    """redisson#664, #3004: it has waited for three leases; one that has just come does not pass it."""
    await declare(redis, name, Config(limit=1, lease_ms=1000, uid="uid", generation=1))
    semaphore = AsyncSemaphore(name, redis=server.url)
    async with Prefork() as clients:
        async with semaphore:
            old = await clients.start(name, server.url)
            await shows(semaphore, waiting=1)
            await asyncio.sleep(3)
            new = asyncio.create_task(semaphore.acquire())
            await shows(semaphore, waiting=2)
        await clients.holding(old)
        assert not new.done()
        clients.kill(old)
        await semaphore.release(await asyncio.wait_for(new, 10))
