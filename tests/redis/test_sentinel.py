"""Semaphores on the primary that Sentinel names, through fail-overs with and without loss."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.redis.conftest import SERVERS
from tests.redis.topologies import Watched, watched

from distributed_semaphore import AsyncSemaphore, SlotLost
from distributed_semaphore.protocol import Config, declare
from distributed_semaphore.protocol.address import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=sorted(SERVERS))
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Watched]:
    with watched(SERVERS[request.param], tmp_path) as running:
        yield running


async def declared(pair: Watched, name: str, lease_ms: int, generation: int = 1) -> None:
    async with connect(pair.url, 5) as redis:
        assert await declare(redis, name, Config(limit=1, lease_ms=lease_ms, uid="uid", generation=generation))


async def promoted(pair: Watched) -> None:
    while not await asyncio.to_thread(pair.is_primary, pair.replica):
        await asyncio.sleep(0.05)


async def test_a_fail_over_keeps_holder_waiters_and_order(pair, name):
    """redisson#6026, #7264; redis-py#1572: subscriptions come back on the new primary."""
    await declared(pair, name, lease_ms=10_000)
    semaphore = AsyncSemaphore(name, redis=pair.url)
    granted: list[int] = []

    async def work(number: int) -> int:
        async with semaphore.slot() as slot:
            granted.append(number)
            return slot.fence

    async with semaphore.slot() as slot:
        tasks = []
        for number in range(20):
            tasks.append(asyncio.create_task(work(number)))
            while (await semaphore.statistics()).waiting <= number:
                await asyncio.sleep(0.005)
        await asyncio.to_thread(pair.catch_up)
        await asyncio.to_thread(pair.fail)
        await promoted(pair)
        assert not slot.lost
    fences = await asyncio.wait_for(asyncio.gather(*tasks), 15)
    assert granted == list(range(20))
    assert [slot.fence, *fences] == sorted({slot.fence, *fences})


async def test_a_planned_switch_leads_every_process_to_the_new_primary(pair, name):
    await declared(pair, name, lease_ms=10_000)
    semaphore = AsyncSemaphore(name, redis=pair.url)
    async with semaphore.slot() as slot:
        waiter = asyncio.create_task(semaphore.acquire())
        while (await semaphore.statistics()).waiting == 0:
            await asyncio.sleep(0.005)
        await asyncio.to_thread(pair.catch_up)  # Sentinel does not wait for the replica
        with pair.on(pair.sentinel) as sentinel:
            sentinel.execute_command("SENTINEL", "FAILOVER", "main")
        await promoted(pair)
        # Sentinel turns to the earlier primary only 10 s later: until then it grants, for whoever still asks it.
        with pair.on(pair.replica) as now_primary:
            before = now_primary.zscore(f"sem:{{{name}}}:holders", slot.token)
            while now_primary.zscore(f"sem:{{{name}}}:holders", slot.token) == before:
                await asyncio.sleep(0.02)
            assert await asyncio.to_thread(pair.is_primary, pair.primary)
        assert not slot.lost
    got = await asyncio.wait_for(waiter, 15)
    with pair.on(pair.replica) as now_primary:
        assert now_primary.zcard(f"sem:{{{name}}}:holders") == 1
    await semaphore.release(got)


async def test_a_holder_whose_grant_the_new_primary_never_saw_is_told_and_fences_rise(pair, name):
    """Asynchronous replication can lose the last writes: the loser hears of it, and no fence comes twice."""
    await declared(pair, name, lease_ms=3000)
    semaphore = AsyncSemaphore(name, redis=pair.url)
    async with semaphore.slot() as earlier:
        pass
    with pair.on(pair.replica) as replica:
        while replica.zcard(f"sem:{{{name}}}:holders"):
            await asyncio.sleep(0.01)
        await asyncio.to_thread(pair.catch_up)
        # From here on the replica learns nothing more, while both believe in the link.
        replica.client_pause(0)
        replica.execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(SlotLost):
        async with semaphore.slot() as lost:
            await asyncio.to_thread(pair.primary.stop)
            with pair.on(pair.replica) as replica:
                replica.execute_command("REPLICAOF", "NO", "ONE")
            with pair.on(pair.sentinel) as sentinel:
                sentinel.execute_command("SENTINEL", "REMOVE", "main")
                sentinel.execute_command("SENTINEL", "MONITOR", "main", "127.0.0.1", pair.replica.port, 1)
            await asyncio.sleep(30)
    async with semaphore.slot(timeout=10) as later:
        pass
    assert earlier.fence < lost.fence < later.fence


async def test_without_a_primary_a_timeout_names_the_service(pair, name):
    semaphore = AsyncSemaphore(name, redis=pair.url.replace("/main", "/nothing"))
    with pytest.raises(Exception, match="No master found for 'nothing'"):
        await semaphore.acquire(timeout=1)
