"""The least that a client's Redis user needs, as docs/redis.md says it; one namespace cannot touch another."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from distributed_semaphore import AsyncSemaphore, Closed, Unavailable
from distributed_semaphore.protocol import Config, Keys, audit, declare, evict, forget, inspect, mark, reap, revoke
from distributed_semaphore.protocol.scripts import SCRIPTS, declare_call, run

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from distributed_semaphore.testing import RedisServer

PAGE = Path(__file__).parents[2] / "docs" / "redis.md"


def rights(user: str) -> list[str]:
    """Read the rule that the page gives for a user."""
    found = re.search(rf"ACL SETUSER {user} ((?:.+\n)+)", PAGE.read_text())
    assert found, f"docs/redis.md has no rule for {user}"
    return found[1].replace("PASSWORD", "secret").split()


RIGHTS = rights("payments")


@pytest.fixture
async def tenant(server: RedisServer, redis: Redis):
    """The address with a user that may use semaphores of the namespace payments only."""
    if (await redis.info("server"))["redis_version"] < "7.0":
        pytest.skip("read rights of their own came with Redis 7")
    await redis.execute_command("ACL", "SETUSER", "tenant", "reset", *RIGHTS)
    yield server.url.replace("//", "//tenant:secret@")
    await redis.execute_command("ACL", "DELUSER", "tenant")


async def test_a_client_works_with_the_documented_rights(tenant, redis, name):
    name = name.replace("tests/", "payments/")
    await declare(redis, name, Config(limit=2, lease_ms=1000, uid="uid", generation=1))
    semaphore = AsyncSemaphore(name, redis=tenant)
    async with semaphore, semaphore:
        waiter = asyncio.create_task(semaphore.acquire())
        await asyncio.sleep(1.5)  # renewed meanwhile
        assert (await semaphore.statistics()).waiting == 1
        await forget(redis, name, "uid")
        with pytest.raises(Closed):
            await waiter
    assert (await semaphore.statistics()).held == 0
    assert await redis.keys(Keys.of(name).prefix + "*") == []


async def test_a_client_cannot_change_the_config(tenant, redis, name):
    """prefect, hatchet: clients with other ideas of the limit must not be able to impose them."""
    name = name.replace("tests/", "payments/")
    await declare(redis, name, Config(limit=2, lease_ms=1000, uid="uid", generation=1))
    async with type(redis).from_url(tenant, decode_responses=True) as connection:
        [reply] = await run(connection, [declare_call(Keys.of(name), Config(limit=99, lease_ms=1000, uid="z"))])
        assert isinstance(reply, ResponseError)
        assert any(words in str(reply) for words in ("permission", "can't access"))
        with pytest.raises(NoPermissionError):
            await connection.hset(Keys.of(name).config, "limit", 99)
    assert await redis.hget(Keys.of(name).config, "limit") == "2"


async def test_a_client_cannot_touch_another_namespace(tenant, redis):
    await declare(redis, "billing/api", Config(limit=2, lease_ms=1000, uid="uid", generation=1))
    with pytest.raises(Unavailable, match=r"refuses"):
        await AsyncSemaphore("billing/api", redis=tenant).acquire(timeout=5)


async def test_no_right_is_documented_that_nothing_uses(tenant, redis, name):
    used = " ".join(script.source for script in SCRIPTS)
    commands = {word[1:].split("|")[0] for word in RIGHTS if word.startswith("+")}
    outside = {"evalsha", "script", "subscribe", "unsubscribe"}
    assert {command for command in commands - outside if f"'{command.upper()}'" not in used} == set()


async def test_the_operator_works_with_the_documented_rights(server, redis, name):
    await redis.execute_command("ACL", "SETUSER", "operator", "reset", *rights("operator"))
    url = server.url.replace("//", "//operator:secret@")
    async with type(redis).from_url(url, decode_responses=True) as connection:
        await connection.ping()
        assert await declare(connection, name, Config(limit=1, lease_ms=1000, uid="uid", generation=1))
        slot = await AsyncSemaphore(name, redis=server.url).acquire()
        assert await declare(connection, name, Config(limit=2, lease_ms=1000, uid="uid", generation=2))
        await redis.zadd(Keys.of(name).prefix + "clients", {"silent": 1})
        assert await reap(connection, [name]) == [False]
        assert await audit(connection, [name]) == [(False, {})]
        assert await mark(connection, [(name, "uid", 1)], (await connection.info("server"))["run_id"]) == [1]
        assert await evict(connection, name, "uid", "none") == (0, 0)
        await connection.scan(0, match="sem:*")
        [snapshot] = await inspect(connection, [name])
        assert snapshot.held == 1
        assert await forget(connection, name, "uid") == 1
        assert await declare(connection, name, Config(limit=2, lease_ms=1000, uid="new", generation=1))
        assert await revoke(connection, name, [slot.token]) == 1
        assert await forget(connection, name, "new") == 0
    assert await redis.keys(Keys.of(name).prefix + "*") == []
    await redis.execute_command("ACL", "DELUSER", "operator")
