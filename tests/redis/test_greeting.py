"""What a server or the rights of a user lack is told at the first call, and of the one semaphore that lacks it."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING

import pytest
from tests.redis.conftest import SERVERS
from tests.redis.test_rights import RIGHTS
from tests.redis.topologies import cluster_port, wait_for

from distributed_semaphore import AsyncSemaphore, Unavailable
from distributed_semaphore.protocol import Config, Keys, declare
from distributed_semaphore.protocol.scripts import APPLY, INSPECT, RENEW, Call, run
from distributed_semaphore.protocol.scripts import RIGHTS as TRIES
from distributed_semaphore.testing import RedisServer
from redis import Redis as SyncRedis

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from redis.asyncio import Redis

COMMANDS = sorted({word for word in RIGHTS if word.startswith("+")})

Tenant = "Callable[..., Awaitable[str]]"


@pytest.fixture
async def tenant(server: RedisServer, redis: Redis) -> AsyncIterator[Tenant]:
    """Make a user with the documented rights but some, and give the address with it."""

    async def make(*without: str, also: tuple[str, ...] = ()) -> str:
        old = (await redis.info("server"))["redis_version"] < "7.0"
        rights = [word for word in RIGHTS if word not in without and not (old and "~" in word)]
        keys = ["~sem:{payments/*"] if old else []
        await redis.execute_command("ACL", "SETUSER", "tenant", "reset", *rights, *keys, *also)
        return server.url.replace("//", "//tenant:secret@")

    yield make
    await redis.execute_command("ACL", "DELUSER", "tenant")


async def configured(redis: Redis, name: str, namespace: str = "payments") -> str:
    name = name.replace("tests/", f"{namespace}/")
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=1))
    return name


@pytest.mark.parametrize("right", COMMANDS)
async def test_a_right_that_is_missing_is_named_before_anything_is_held(tenant, redis, name, right):
    name = await configured(redis, name)
    semaphore = AsyncSemaphore(name, redis=await tenant(right))
    with pytest.raises(
        Unavailable, match=rf"user tenant lacks the right {re.escape(right.partition('|')[0])}"
    ) as refused:
        await semaphore.acquire()
    assert "secret" not in str(refused.value)
    if right != "+subscribe":  # who only looks listens to nothing
        with pytest.raises(Unavailable, match=r"user tenant lacks the right"):
            await semaphore.statistics()
    assert await redis.exists(*Keys.of(name).scripted[:5]) == 0


async def test_a_right_that_is_given_later_is_enough(tenant, redis, name):
    name = await configured(redis, name)
    semaphore = AsyncSemaphore(name, redis=await tenant("+zmscore"))
    with pytest.raises(Unavailable):
        await semaphore.acquire()
    await tenant()
    while True:
        try:
            slot = await semaphore.acquire()
        except Unavailable:
            await asyncio.sleep(0.01)
        else:
            break
    assert await semaphore.release(slot)


async def test_keys_that_may_not_be_used_are_told_of_their_semaphore_and_hold_up_no_other(tenant, redis, name):
    mine, other = await configured(redis, name), await configured(redis, name, "billing")
    url = await tenant(also=("&*",))
    semaphore, refused = AsyncSemaphore(mine, redis=url), AsyncSemaphore(other, redis=url)
    async with semaphore.slot():
        for _ in range(3):
            with pytest.raises(
                Unavailable, match=rf"billing/.*user tenant lacks the right .* ~sem:{{billing/{name[6:]}}}"
            ):
                await refused.acquire()
        with pytest.raises(Unavailable, match=r"user tenant lacks the right .*billing/"):
            await refused.statistics()
    before = (await redis.info("commandstats")).get("cmdstat_evalsha", {}).get("rejected_calls")
    for _ in range(50):
        async with semaphore.slot():
            pass
    assert (await redis.info("commandstats")).get("cmdstat_evalsha", {}).get("rejected_calls") == before


async def test_a_channel_that_may_not_be_heard_is_told_of_its_semaphore_and_silences_no_other(tenant, redis, name):
    mine, other = await configured(redis, name), await configured(redis, name, "billing")
    url = await tenant(also=("~*",))
    holder, semaphore = (
        AsyncSemaphore(mine, redis=await tenant(also=("~*",)) + "?socket_keepalive=1"),
        AsyncSemaphore(mine, redis=url),
    )
    refused = AsyncSemaphore(other, redis=url)
    for _ in range(3):
        with pytest.raises(Unavailable, match=rf"user tenant lacks the right .* &sem:{{billing/{name[6:]}}}:w:"):
            await refused.acquire()
        slots = [await holder.acquire() for _ in range(2)]
        waiter = asyncio.create_task(semaphore.acquire())
        while (await semaphore.statistics()).waiting == 0:
            await asyncio.sleep(0.005)
        await asyncio.gather(*map(holder.release, slots))
        assert await semaphore.release(await waiter)


async def test_what_an_option_of_the_address_asks_for_needs_a_right_too(tenant, redis, name):
    semaphore = AsyncSemaphore(await configured(redis, name), redis=await tenant() + "?client_name=worker")
    with pytest.raises(Unavailable, match=r"user tenant lacks the right \+client"):
        await semaphore.acquire()


async def test_a_command_that_the_server_does_not_know_is_named(name):
    with RedisServer(args=("--rename-command", "ZMSCORE", "")) as server:
        semaphore = AsyncSemaphore(name, redis=server.url, limit=1, lease=30)
        with pytest.raises(Unavailable, match="it does not know ZMSCORE"):
            await semaphore.acquire()


@pytest.mark.skipif("redis62" not in SERVERS, reason="no Redis 6.2 here")
async def test_a_cluster_without_sharded_messages_is_refused(name):
    with RedisServer(SERVERS["redis62"], ("--cluster-enabled", "yes"), port=cluster_port()) as server:
        with SyncRedis(port=server.port, decode_responses=True) as node:
            node.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            wait_for(lambda: node.cluster("INFO")["cluster_state"] == "ok")
        semaphore = AsyncSemaphore(name, redis=f"redis+cluster://127.0.0.1:{server.port}", limit=1, lease=30)
        with pytest.raises(Unavailable, match=r"version 6\.2\.\d+, and 7\.0 is the oldest that works as a cluster"):
            await semaphore.acquire()


async def test_trying_the_rights_changes_nothing(server, redis, name):
    [refused] = await run(redis, [Call(TRIES, Keys.of(name), ["x"])])
    assert refused == []
    assert await redis.keys(Keys.of(name).prefix + "*") == []
    semaphore = AsyncSemaphore(name, redis=server.url, limit=1, lease=30)
    await semaphore.acquire()
    waiter = asyncio.create_task(semaphore.acquire())
    while (await semaphore.statistics()).waiting == 0:
        await asyncio.sleep(0.005)
    keys = await redis.keys(Keys.of(name).prefix + "*")
    clients = {key for key in keys if key.endswith("clients")}  # a heartbeat may change these meanwhile
    before = {key: await redis.dump(key) for key in set(keys) - clients}
    assert len(before) == 6
    assert await run(redis, [Call(TRIES, Keys.of(name), ["x"])]) == [[]]
    assert {key: await redis.dump(key) for key in before} == before
    waiter.cancel()


def test_every_command_of_a_clients_scripts_is_tried():
    def commands(text: str, pattern: str) -> set[str]:
        return set(re.findall(pattern, text))

    used = commands("".join(script.source for script in (APPLY, RENEW, INSPECT)), r"\bcall\('([A-Z]+)'")
    assert used == commands(TRIES.source, r"\{ '([A-Z]+)'")


async def test_a_server_that_evicts_is_warned_of_by_who_declares(caplog, name):
    with RedisServer(args=("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")) as server:
        with caplog.at_level(logging.WARNING, "distributed_semaphore"):
            async with AsyncSemaphore(name, redis=server.url, limit=1):
                pass
        assert "maxmemory-policy is allkeys-lru" in caplog.text


async def test_who_waits_goes_on_waiting_while_the_server_takes_no_writes(server, redis, name):
    semaphore = AsyncSemaphore(name, redis=server.url, limit=1, lease=30)
    slot = await semaphore.acquire()
    await redis.config_set("min-replicas-to-write", 1)
    waiter = asyncio.create_task(semaphore.acquire())
    slot.give_back()
    rejected = 0
    while rejected < 3:
        await asyncio.sleep(0.05)
        rejected = (await redis.info("errorstats")).get("errorstat_NOREPLICAS", {}).get("count", 3)
    assert not waiter.done()
    await redis.config_set("min-replicas-to-write", 0)
    assert await semaphore.release(await waiter)


async def test_what_stands_in_the_place_of_a_semaphore_is_said(server, redis, name):
    await redis.set(Keys.of(name).prefix + "holders", "text")
    semaphore = AsyncSemaphore(name, redis=server.url, limit=1)
    with pytest.raises(Unavailable, match="wrong kind of value"):
        await semaphore.statistics()
    with pytest.raises(Unavailable, match="wrong kind of value"):
        await semaphore.acquire()
