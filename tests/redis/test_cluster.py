"""Semaphores on Redis Cluster: each on the node of its slot, none any the wiser (limits PR #169, sherlock#31)."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

import pytest
from tests.redis.conftest import SERVERS
from tests.redis.test_rights import PAGE, rights
from tests.redis.topologies import Cluster, cluster

from distributed_semaphore import AcquireTimeout, AsyncSemaphore, Unavailable
from distributed_semaphore.protocol import Config, declare, forget, inspect, reap, revoke
from distributed_semaphore.protocol.address import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from redis.asyncio import RedisCluster

WITH_SHARDED_PUBSUB = sorted(set(SERVERS) - {"redis62"})


@pytest.fixture(scope="module", params=WITH_SHARDED_PUBSUB)
def nodes(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with cluster(SERVERS[request.param]) as running:
        yield running


@pytest.fixture
async def redis(nodes: Cluster) -> AsyncIterator[RedisCluster]:
    async with connect(nodes.url, 5) as connection:
        yield connection


def another_process(nodes: Cluster) -> str:
    """Give the address in other words: whoever uses it has connections and an identity of its own."""
    return nodes.url + "?socket_keepalive=1"


async def declared(redis: RedisCluster, name: str, limit: int = 1, lease_ms: int = 30_000) -> None:
    assert await declare(redis, name, Config(limit=limit, lease_ms=lease_ms, uid=f"uid-{name}", generation=1))


@pytest.mark.parametrize("node", [0, 1, 2])
async def test_a_slot_goes_from_process_to_process_on_any_node(nodes, redis, node):
    name = nodes.name_on(node)
    await declared(redis, name)
    here, there = AsyncSemaphore(name, redis=nodes.url), AsyncSemaphore(name, redis=another_process(nodes))
    fences, took = [], []
    for _ in range(3):
        async with here.slot() as slot:
            fences.append(slot.fence)
            waiter = asyncio.create_task(there.acquire())
            while (await here.statistics()).waiting == 0:
                await asyncio.sleep(0.01)
        released = time.monotonic()
        got = await waiter
        took.append(time.monotonic() - released)
        fences.append(got.fence)
        await there.release(got)
    assert fences == sorted(set(fences))
    # The heartbeat of a lease of 30 s is 1.7 s: only the message can be that quick.
    assert sorted(took)[1] < 1


async def test_semaphores_of_all_nodes_serve_one_process_at_once(nodes, redis):
    names = [nodes.name_on(node) for node in range(3) for _ in range(5)]
    for name in names:
        await declared(redis, name, limit=2)
    most = dict.fromkeys(names, 0)

    async def work(name: str) -> None:
        semaphore = AsyncSemaphore(name, redis=nodes.url)
        async with semaphore:
            most[name] = max(most[name], (await semaphore.statistics()).held)
            await asyncio.sleep(0.01)

    await asyncio.gather(*(work(name) for name in names for _ in range(10)))
    assert set(most.values()) == {2}
    while any(snapshot.holder_count for snapshot in await inspect(redis, names)):
        await asyncio.sleep(0.01)
    totals = [(snapshot.counters.granted, snapshot.counters.released) for snapshot in await inspect(redis, names)]
    assert totals == [(10, 10)] * len(names)


async def test_what_the_operator_does_reaches_every_node(nodes, redis):
    names = [nodes.name_on(node) for node in range(3)]
    for name in names:
        await declared(redis, name, limit=0)
    semaphores = [AsyncSemaphore(name, redis=nodes.url) for name in names]
    waiters = [asyncio.create_task(semaphore.acquire()) for semaphore in semaphores]
    for semaphore in semaphores:
        while (await semaphore.statistics()).waiting == 0:
            await asyncio.sleep(0.01)
    assert await reap(redis, names) == [False] * 3
    for name in names:
        raised = Config(limit=1, lease_ms=30_000, uid=f"uid-{name}", generation=2)
        assert await declare(redis, name, raised)
    slots = await asyncio.wait_for(asyncio.gather(*waiters), 5)
    for name, slot in zip(names, slots, strict=True):
        assert await revoke(redis, name, [slot.token]) == 1
        assert await forget(redis, name, f"uid-{name}") == 0
    for slot in slots:
        while not slot.lost:
            await asyncio.sleep(0.01)


async def test_timeouts_weights_and_priorities_work_there_as_anywhere(nodes, redis):
    name = nodes.name_on(1)
    await declared(redis, name, limit=4)
    semaphore = AsyncSemaphore(name, redis=nodes.url)
    order: list[int] = []

    async def work(priority: int) -> None:
        async with semaphore.slot(weight=4, priority=priority):
            order.append(priority)

    async with semaphore.slot(weight=3):
        with pytest.raises(AcquireTimeout, match="1st of 1 in line, limit 4"):
            await semaphore.acquire(weight=2, timeout=1)
        tasks = [asyncio.create_task(work(priority)) for priority in (0, 5, 3)]
        while (await semaphore.statistics()).waiting < 3:
            await asyncio.sleep(0.01)
    await asyncio.gather(*tasks)
    assert order == [5, 3, 0]


async def test_scripts_that_every_node_forgot_are_loaded_again(nodes, redis):
    """redlock-rb#27, PyrateLimiter#182."""
    name = nodes.name_on(2)
    await declared(redis, name)
    semaphore = AsyncSemaphore(name, redis=nodes.url)
    for _ in range(3):
        for node in nodes.nodes[:3]:
            node.script_flush()
        async with semaphore:
            for node in nodes.nodes[:3]:
                node.script_flush()
            [snapshot] = await inspect(redis, [name])
            assert snapshot.holder_count == 1


async def test_a_semaphore_whose_slot_moves_keeps_its_holder_and_its_waiter(nodes, redis):
    name = nodes.name_on(1)
    await declared(redis, name, lease_ms=2000)
    here, there = AsyncSemaphore(name, redis=nodes.url), AsyncSemaphore(name, redis=another_process(nodes))
    async with here.slot() as slot:
        waiter = asyncio.create_task(there.acquire())
        while (await here.statistics()).waiting == 0:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(nodes.move_slot, name, 1, 2)
        await asyncio.sleep(3)  # more than a lease: renewals have gone to the new node
        assert not slot.lost
        assert not waiter.done()
    got = await asyncio.wait_for(waiter, 5)
    assert got.fence > slot.fence
    assert not got.lost
    await there.release(got)


async def test_a_replica_that_takes_over_goes_on_with_holders_and_waiters(nodes):
    """redisson#6026, #7264; redis-py#1572."""
    with cluster(nodes.servers[0].binary) as own:  # which is not the same afterwards
        name = own.name_on(0)
        async with connect(own.url, 5) as redis:
            await declared(redis, name, lease_ms=10_000)
        here, there = AsyncSemaphore(name, redis=own.url), AsyncSemaphore(name, redis=another_process(own))
        async with here.slot() as slot:
            waiters = [asyncio.create_task(there.acquire()) for _ in range(10)]
            while (await here.statistics()).waiting < 10:
                await asyncio.sleep(0.01)
            own.nodes[0].incr(f"{{{name}}}mark")  # WAIT looks at the writes of its own connection
            own.nodes[0].wait(1, 1000)
            await asyncio.to_thread(own.servers[0].stop)
            while not await asyncio.to_thread(own.is_primary, 3):
                await asyncio.sleep(0.05)
            assert not slot.lost
        fences = [slot.fence]
        for waiter in waiters:
            got = await asyncio.wait_for(waiter, 10)
            fences.append(got.fence)
            await there.release(got)
        assert fences == sorted(set(fences))


async def test_a_client_works_there_with_the_documented_rights(nodes, redis):
    more = re.search(r"In a cluster, sharded.+\n\n((?: {4}.+\n)+)", PAGE.read_text())
    assert more
    rules = [*rights("payments"), *more[1].split()]
    for node in nodes.nodes:
        node.execute_command("ACL", "SETUSER", "tenant", "reset", *rules)
    name = next(f"payments/{i}" for i in range(100) if nodes.owner(f"payments/{i}") == 1)
    await declared(redis, name, lease_ms=1000)
    address = nodes.url.replace("://", "://tenant:secret@")
    here, there = AsyncSemaphore(name, redis=address), AsyncSemaphore(name, redis=address + "?socket_keepalive=1")
    async with here.slot() as slot:
        waiter = asyncio.create_task(there.acquire())
        await asyncio.sleep(1.5)  # renewed meanwhile
        assert (await here.statistics()).waiting == 1
        assert not slot.lost
    await there.release(await asyncio.wait_for(waiter, 5))


async def test_the_operator_works_there_with_the_documented_rights(nodes):
    more = re.search(r"In a cluster it also needs `(.+)`", PAGE.read_text())
    assert more
    for node in nodes.nodes:
        node.execute_command("ACL", "SETUSER", "operator", "reset", *rights("operator"), *more[1].split())
    name = nodes.name_on(2)
    async with connect(nodes.url.replace("://", "://operator:secret@"), 5) as redis:
        await declared(redis, name)
        assert await redis.ping()
        assert await reap(redis, [name]) == [False]
        assert [snapshot.limit for snapshot in [(await inspect(redis, [name]))[0].config]] == [1]
        assert await forget(redis, name, f"uid-{name}") == 0


async def test_a_cluster_address_of_no_cluster_says_so(server, name):
    semaphore = AsyncSemaphore(name, redis=server.url.replace("redis://", "redis+cluster://").removesuffix("/0"))
    with pytest.raises(Exception, match="Cluster mode is not enabled"):
        await semaphore.acquire(timeout=1)


async def test_without_a_cluster_nobody_waits_for_ever(name):
    semaphore = AsyncSemaphore(name, redis="redis+cluster://127.0.0.1:1")
    for request in (semaphore.try_acquire(), semaphore.statistics(), semaphore.acquire(timeout=0.5)):
        with pytest.raises(Unavailable, match=r"redis\+cluster://127\.0\.0\.1:1 cannot be used: .+"):
            await asyncio.wait_for(request, 20)
