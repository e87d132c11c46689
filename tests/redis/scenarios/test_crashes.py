"""Scenarios of public bug reports: crashes and leaks."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from typing import TYPE_CHECKING

from tests.redis.scenarios.actors import Prefork, shows, until
from tests.redis.scenarios.conftest import SOAK

from distributed_semaphore import AsyncSemaphore, ReleaseOutcome
from distributed_semaphore.protocol import Config, Keys, audit, declare, inspect
from distributed_semaphore.protocol.scripts import APPLY

if TYPE_CHECKING:
    from redis.asyncio import Redis


async def declared(redis: Redis, name: str, limit: int) -> None:
    """Declare a semaphore with a lease of 1 s, as an operator would."""
    await declare(redis, name, Config(limit=limit, lease_ms=1000, uid="uid", generation=1))


async def nothing_leaked(redis: Redis, name: str) -> None:
    """Make sure that the keys agree with each other, as the operator's audit metric would show."""
    [snapshot] = await inspect(redis, [name])
    assert not isinstance(snapshot, Exception)
    assert (snapshot.held, snapshot.holder_count, snapshot.waiter_count) == (0, 0, 0)
    [(more, repairs)] = await audit(redis, [name])
    assert (more, repairs) == (False, {})


async def test_a_slot_outlives_its_clients_connections_and_is_released_by_the_same_token(redis, name, proxy):
    """argo-workflows#8684: the connections of holder and waiter are reset, and an operator that was restarted writes
    the config as the next leader; the slot is the same, its release counts, the next is granted.
    """
    await declared(redis, name, limit=1)
    semaphore = AsyncSemaphore(name, redis=proxy.url)
    slot = await semaphore.acquire()
    waiter = asyncio.create_task(semaphore.acquire())
    await shows(semaphore, waiting=1)
    proxy.cut()
    while not proxy.idle:
        await asyncio.sleep(0.005)
    assert await declare(redis, name, Config(limit=1, lease_ms=1000, uid="uid", generation=1, epoch=2))
    await until(lambda: reconnected(proxy))
    assert await redis.zrange(Keys.of(name).prefix + "holders", 0, -1) == [slot.token]
    assert await semaphore.release(slot) is ReleaseOutcome.RELEASED
    second = await asyncio.wait_for(waiter, 10)
    assert second.fence > slot.fence
    assert await semaphore.release(second) is ReleaseOutcome.RELEASED


async def reconnected(proxy) -> bool:
    """Whether there are connections again."""
    return not proxy.idle


async def test_after_an_outage_everybody_reconnects_and_dead_holders_are_replaced(server, redis, name, proxy):
    """argo-workflows#16772, #16771: Redis out of reach for two leases (10 minutes there), a holder dies meanwhile."""
    await declared(redis, name, limit=2)
    semaphore = AsyncSemaphore(name, redis=proxy.url)
    async with Prefork() as clients:
        dead = await clients.holder(name, proxy.url)
        slot = await semaphore.acquire()
        waiters = [asyncio.create_task(semaphore.acquire()) for _ in range(4)]
        await shows(semaphore, waiting=4)
        proxy.refusing = True
        proxy.cut()
        clients.kill(dead)
        await asyncio.sleep(2)
        assert slot.lost
        proxy.refusing = False
        for waiter in waiters:
            assert await semaphore.release(await asyncio.wait_for(waiter, 10)) is ReleaseOutcome.RELEASED
    assert await semaphore.release(slot) is ReleaseOutcome.LOST
    await nothing_leaked(redis, name)


async def test_slots_of_killed_holders_go_to_who_waits_and_to_who_comes(server, redis, name):
    """redisson#4462, #2045; prefect#17415: both holders are killed; one waits already, one comes later."""
    await declared(redis, name, limit=2)
    semaphore = AsyncSemaphore(name, redis=server.url)
    async with Prefork() as clients:
        holders = [await clients.holder(name, server.url) for _ in range(2)]
        waiter = asyncio.create_task(semaphore.acquire())
        await shows(semaphore, waiting=1)
        for pid in holders:
            clients.kill(pid)
        new = await semaphore.acquire(timeout=4)  # a lease, and what a loaded machine needs
        old = await asyncio.wait_for(waiter, 10)
        assert old.fence < new.fence  # in order of arrival
        await semaphore.release(old)
        await semaphore.release(new)
    assert (await semaphore.statistics()).totals.expired == 2
    await nothing_leaked(redis, name)


async def test_a_client_killed_at_any_step_of_an_acquire_leaves_no_slot_behind(server, redis, name, proxy):
    """infrahub#9856, dv/redis-semaphore#64: killed when the 1st, 2nd, ... piece of data is on its way.

    24 clients; 200 with SEMAPHORE_SOAK=1.
    """
    await declared(redis, name, limit=1000)
    semaphore = AsyncSemaphore(name, redis=server.url)
    killed_before = 0
    async with Prefork() as clients:
        for n in range(200 if SOAK else 24):
            reached = asyncio.Event()
            steps = itertools.count(n % 12)

            def count(_data: bytes, reached=reached, steps=steps) -> None:
                if next(steps) == 11:
                    reached.set()
                    proxy.swallow()

            proxy.on_chunk = count
            pid = await clients.start(name, proxy.url)
            await asyncio.wait_for(reached.wait(), 10)
            killed_before += not clients.holds(pid)
            clients.kill(pid)
            proxy.deliver()
            proxy.on_chunk = lambda _data: None
    assert killed_before
    while not proxy.idle:  # what is on its way from a killed client may still be executed
        await asyncio.sleep(0.01)
    await until(lambda: audited(redis, name))
    slots = [await semaphore.acquire(timeout=5) for _ in range(3)]
    for slot in slots:
        await semaphore.release(slot)
    await nothing_leaked(redis, name)


async def audited(redis: Redis, name: str) -> bool:
    """Whether nobody holds or waits, once what has expired was taken back."""
    await audit(redis, [name])
    [snapshot] = await inspect(redis, [name])
    assert not isinstance(snapshot, Exception)
    return snapshot.holder_count == snapshot.waiter_count == 0


async def test_a_lost_reply_takes_no_second_slot_and_gives_back_no_second(redis, name, proxy):
    """curator#835, #982; token-throttle#21: the replies of an acquire and of a release are lost."""
    await declared(redis, name, limit=2)
    semaphore = AsyncSemaphore(name, redis=proxy.url)
    warm = await semaphore.acquire()
    sha = APPLY.sha.encode()

    proxy.lose_reply(sha)
    slot = await semaphore.acquire(timeout=10)
    assert proxy.lost_replies == 1
    statistics = await semaphore.statistics()
    assert (statistics.held, statistics.totals.granted) == (2, 2)

    waiters = [asyncio.create_task(semaphore.acquire()) for _ in range(2)]
    await shows(semaphore, waiting=2)
    proxy.lose_reply(sha)
    await semaphore.release(slot)
    assert proxy.lost_replies == 2
    first = await asyncio.wait_for(waiters[0], 10)
    await shows(semaphore, held=2, waiting=1)
    assert (await semaphore.statistics()).totals.released == 1
    await semaphore.release(first)
    await semaphore.release(await asyncio.wait_for(waiters[1], 10))
    await semaphore.release(warm)
    await nothing_leaked(redis, name)


async def test_semaphores_used_once_leave_keys_that_end_by_themselves(server, redis, name):
    """sidekiq#3323, #2617; redisson#4100, #6302: every key has a lifetime. 500 names; 10,000 with SEMAPHORE_SOAK=1."""
    names = 10_000 if SOAK else 500
    made = [AsyncSemaphore(f"{name}-{n}", redis=server.url, limit=1, lease=1) for n in range(names)]

    async def use(semaphore: AsyncSemaphore) -> None:
        async with semaphore:
            pass

    for start in range(0, names, 500):
        await asyncio.gather(*map(use, made[start : start + 500]))
    await shows(made[-1], held=0)
    keys = [key async for key in redis.scan_iter(Keys.of(name).prefix.split("}", maxsplit=1)[0] + "-*", count=5000)]
    assert len(keys) >= names
    async with redis.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.pttl(key)
        assert min(await pipeline.execute()) > 0


async def test_whatever_fails_on_the_way_the_limit_holds_and_nothing_leaks(redis, name, proxy):
    """prefect#21794, opik#6688: connections are cut and stalled at random; held is the number of holder entries.

    3 s of faults; 120 s with SEMAPHORE_SOAK=1.
    """
    await declared(redis, name, limit=3)
    semaphore = AsyncSemaphore(name, redis=proxy.url)
    holders = Keys.of(name).prefix + "holders"
    chance = random.Random(7)
    end = time.monotonic() + (120 if SOAK else 3)
    inside = most = jobs = 0

    async def work() -> None:
        nonlocal inside, most, jobs
        while time.monotonic() < end:
            async with semaphore:
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(chance.uniform(0, 0.02))
                inside -= 1
                jobs += 1

    workers = [asyncio.create_task(work()) for _ in range(12)]
    faults = 0
    while time.monotonic() < end:
        await asyncio.sleep(chance.uniform(0.02, 0.1))
        if chance.random() < 0.5:
            proxy.cut()
        else:
            proxy.swallow()
            await asyncio.sleep(0.05)
            proxy.deliver()
        faults += 1
        [snapshot] = await inspect(redis, [name])
        assert not isinstance(snapshot, Exception)
        assert 0 <= snapshot.held == snapshot.holder_count <= 3
        assert await redis.zcard(holders) <= 3
    await asyncio.wait_for(asyncio.gather(*workers), 20)
    assert most <= 3
    assert jobs > faults > 10
    await shows(semaphore, held=0, waiting=0)
    await nothing_leaked(redis, name)


async def test_a_crash_now_and_then_leaks_no_slot(server, redis, name):
    """hatchet#4494, bullmq#3929: of 100 holds in between, every tenth holder is killed; 5,000 with SEMAPHORE_SOAK=1."""
    await declared(redis, name, limit=2)
    semaphore = AsyncSemaphore(name, redis=server.url)
    crashes = 0
    async with Prefork() as clients:
        for n in range(5000 if SOAK else 40):
            if n % 10 == 0:
                clients.kill(await clients.holder(name, server.url))
                crashes += 1
            async with semaphore.slot(timeout=10):
                pass

    async def all_expired() -> bool:
        return await audited(redis, name) and (await semaphore.statistics()).totals.expired == crashes

    await until(all_expired)
    await nothing_leaked(redis, name)
