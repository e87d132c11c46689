"""Scenarios of public bug reports: lease and renewal."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from tests.redis.scenarios.actors import shows, until
from tests.redis.scenarios.conftest import SOAK

from distributed_semaphore import AsyncSemaphore, ReleaseOutcome, SlotLost
from distributed_semaphore.protocol import Config, Keys, declare, inspect

if TYPE_CHECKING:
    from redis.asyncio import Redis


async def expiry(redis: Redis, name: str) -> float:
    """When the only holder's slot ends, in seconds of the server's clock."""
    [(_token, at)] = await redis.zrange(Keys.of(name).prefix + "holders", 0, -1, withscores=True)
    return at / 1000


async def test_renewals_that_fail_for_less_than_the_lease_lose_nothing_once_and_again(redis, name, proxy):
    """prefect#21064, #18893; redisson#2515: nothing gets through for 40 % of the lease, three times in one hold."""
    semaphore = AsyncSemaphore(name, redis=proxy.url, limit=1, lease=2)
    async with semaphore as slot:
        for _ in range(3):
            proxy.swallow()
            await asyncio.sleep(0.8)
            proxy.deliver()
            stalled = await expiry(redis, name)
            await until(lambda stalled=stalled: renewed(redis, name, stalled))
            slot.check()
    await shows(semaphore, held=0)
    totals = (await semaphore.statistics()).totals
    assert (totals.granted, totals.expired) == (1, 0)


async def renewed(redis: Redis, name: str, since: float) -> bool:
    """Whether the slot ends later than it did."""
    return await expiry(redis, name) > since


async def test_who_is_cut_off_for_longer_than_the_lease_is_told_before_another_is_granted(server, redis, name, proxy):
    """prefect#18839, #21157: the holder's messages vanish, the server and who waits there are well."""
    await declare(redis, name, Config(limit=1, lease_ms=1500, uid="uid", generation=1))
    far, near = AsyncSemaphore(name, redis=proxy.url), AsyncSemaphore(name, redis=server.url)
    waiter = None
    with pytest.raises(SlotLost, match="could not be renewed in time"):
        async with far.slot() as slot:
            waiter = asyncio.create_task(near.acquire())
            await shows(near, waiting=1)
            proxy.swallow()
            ends = await expiry(redis, name)
            # By the holder's own clock, which needs no message: it gives up before the server does.
            assert time.time() - time.monotonic() + slot.deadline < ends
            await asyncio.sleep(20)
    second = await asyncio.wait_for(waiter, 10)
    assert second.fence / 1e6 >= ends  # it is the server's time
    assert second.fence > slot.fence
    proxy.deliver()  # the late release of the first changes nothing
    assert await near.release(second) is ReleaseOutcome.RELEASED


async def test_connections_cut_at_every_renewal_lose_nothing(redis, name, proxy):
    """prefect#18893, redisson#2515: every renewal's connection is reset, for three leases; all is sent again."""
    semaphore = AsyncSemaphore(name, redis=proxy.url, limit=1, lease=1)
    end = time.monotonic() + 3
    async with semaphore as slot:
        while time.monotonic() < end:
            proxy.cut()
            await asyncio.sleep(0.25)
            slot.check()
    await shows(semaphore, held=0)
    assert (await semaphore.statistics()).totals.expired == 0


async def test_a_release_at_the_moment_of_a_renewal_succeeds_and_nothing_is_told_lost_after_it(server, redis, name):
    """prefect#18942; swarthy/redis-semaphore#205: 600 holds of a renewal interval; 10,000 with SEMAPHORE_SOAK=1."""
    semaphore = AsyncSemaphore(name, redis=server.url, limit=200, lease=1)
    outcomes: list[ReleaseOutcome] = []

    async def hold(n: int) -> None:
        slot = await semaphore.acquire()
        await asyncio.sleep(1 / 3 - 0.01 + n % 20 / 1000)
        outcomes.append(await semaphore.release(slot))
        assert not slot.lost
        slot.check()

    jobs = 10_000 if SOAK else 600
    await asyncio.gather(*map(hold, range(jobs)))
    assert outcomes == [ReleaseOutcome.RELEASED] * jobs
    totals = (await semaphore.statistics()).totals
    assert (totals.granted, totals.released, totals.expired) == (jobs, jobs, 0)


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "with a waiter"])
async def test_a_shorter_lease_reaches_present_holders_with_their_next_renewal(server, redis, name, others):
    """kured#822: held on a lease of 1 h; the resource now says 2 s. Its status tells of the lease in Redis."""
    await declare(redis, name, Config(limit=1, lease_ms=3_600_000, uid="uid", generation=1))
    semaphore = AsyncSemaphore(name, redis=server.url)
    async with semaphore as slot:
        waiters = [asyncio.create_task(semaphore.acquire()) for _ in range(others)]
        await shows(semaphore, waiting=others)
        await until(lambda: ends_after(redis, name, 3000))  # confirmed, for an hour
        await declare(redis, name, Config(limit=1, lease_ms=2000, uid="uid", generation=2))
        await until(lambda: ends_before(redis, name, 2))
        await until(lambda: remaining_below(slot, 2))
        [snapshot] = await inspect(redis, [name])
        assert snapshot.config.lease_ms == 2000
        slot.check()
    for waiter in waiters:
        await semaphore.release(await asyncio.wait_for(waiter, 10))


async def ends_after(redis: Redis, name: str, seconds: float) -> bool:
    """Whether the slot ends later than in so many seconds."""
    return await expiry(redis, name) - await server_time(redis) > seconds


async def ends_before(redis: Redis, name: str, seconds: float) -> bool:
    """Whether the slot ends within so many seconds."""
    return await expiry(redis, name) - await server_time(redis) <= seconds


async def remaining_below(slot, seconds: float) -> bool:
    """Whether the holder itself believes so."""
    return slot.remaining() <= seconds


async def server_time(redis: Redis) -> float:
    """The server's clock, in seconds."""
    seconds, micros = await redis.time()
    return seconds + micros / 1e6


async def test_a_hold_of_many_leases_is_renewed_three_times_a_lease(server, redis, name):
    """python-redis-lock#85, redis-py#370: a hold of 4 leases; 100 with SEMAPHORE_SOAK=1. Lease 1.2 s.

    Each renewal lets the slot end one lease after it, to the millisecond: as the heartbeat that the same script notes.
    """
    lease, leases = 1.2, 100 if SOAK else 4
    semaphore = AsyncSemaphore(name, redis=server.url, limit=1, lease=lease)
    ends: set[float] = set()
    async with semaphore as slot:
        began = time.monotonic()
        while time.monotonic() - began < lease * leases:
            async with redis.pipeline(transaction=True) as pipeline:
                prefix = Keys.of(name).prefix
                pipeline.zrange(prefix + "holders", 0, -1, withscores=True)
                pipeline.zrange(prefix + "clients", 0, -1, withscores=True)
                pipeline.time()
                [(_, at)], [(_, heartbeat)], (seconds, micros) = await pipeline.execute()
            now = seconds * 1000 + micros // 1000
            assert now < at <= now + lease * 1000
            assert not ends or at in {heartbeat, *ends}
            ends.add(at)
            await asyncio.sleep(0.02)
            slot.check()
        renewals = len(ends) - 1
    assert 2 * leases <= renewals <= 3 * leases + 2  # a loaded machine may be late, never early
