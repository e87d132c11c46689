"""What one resource comes to in a real Redis, when the watch and the sweep get in each other's way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis
from tests.unit.factories import resource

from distributed_semaphore.protocol import inspect
from semaphore_operator.observe import observe
from semaphore_operator.reconcile import reconcile, write
from semaphore_operator.registry import Registry
from semaphore_operator.runs import Runs
from semaphore_operator.settings import Settings
from semaphore_operator.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from distributed_semaphore.testing import RedisServer

LATER = "2027-01-15T09:00:00Z"


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_server.url, decode_responses=True) as connection:
        await connection.flushall()
        yield connection


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[Store]:
    made = Store(Settings(redis=redis_server.url))
    yield made
    await made.close()


async def test_what_was_deleted_while_it_was_written_does_not_come_back(redis: Redis, store: Store) -> None:
    """The sweep has listed a resource; the watch deletes it; then the sweep writes it."""
    registry = Registry()
    listed = resource()
    registry.put(listed)
    await reconcile(resource(deleted=LATER, generation=2), registry, store, 0)
    await write(listed, registry, redis, 0)
    assert await redis.keys("sem:*") == []


async def test_of_two_edits_the_later_one_stays_whichever_comes_last(redis: Redis, store: Store) -> None:
    """kopf#574: two changes of a spec during one reconcile."""
    registry = Registry()
    await reconcile(resource(limit=8, generation=3), registry, store, 0)
    await reconcile(resource(limit=5, generation=2), registry, store, 0)
    [seen] = await inspect(redis, ["payments/licensed-api"])
    assert (seen.config.limit, seen.config.generation) == (8, 3)


async def test_a_config_of_a_later_leader_is_left_alone(redis: Redis, store: Store) -> None:
    registry = Registry()
    await reconcile(resource(limit=8), registry, store, epoch=7)
    await reconcile(resource(limit=5, generation=2), registry, store, epoch=6)
    [seen] = await inspect(redis, ["payments/licensed-api"])
    assert (seen.config.limit, seen.config.epoch) == (8, 7)


async def test_the_reclaim_lasts_for_the_longest_lease_that_may_have_been_in_force(redis: Redis) -> None:
    """The spec has a shorter one now; a holder may still live by the old one."""
    registry = Registry()
    known = resource(lease="5s", status={"observedGeneration": 1, "leaseSeconds": 60})
    registry.put(known)
    look = await observe(redis, [known], registry, Runs(), 0)
    [seen] = look.found
    assert look.lost == [known]
    assert 59 < seen.reclaim_until - seen.server_time <= 60


async def test_a_resource_that_redis_never_had_waits_for_no_reclaim(redis: Redis) -> None:
    """However old it is: made while the operator was away."""
    registry = Registry()
    registry.put(resource(created="2020-01-01T00:00:00Z"))
    look = await observe(redis, registry.all(), registry, Runs(), 0)
    [seen] = look.found
    assert (seen.reclaim_until, look.lost) == (None, [])


async def test_fences_go_on_above_the_highest_that_was_seen(redis: Redis) -> None:
    high = 9_000_000_000_000_000
    registry = Registry()
    held = [{"since": LATER, "fence": high}]
    registry.put(resource(status={"observedGeneration": 1, "heldBy": held}))
    [seen] = (await observe(redis, registry.all(), registry, Runs(), 0)).found
    assert seen.last_grant == high / 1e6, "a fence is the time of its grant"


@pytest.mark.parametrize(("field", "value"), [("lease", "soon"), ("state", "Open"), ("limit", "-5")])
async def test_a_config_that_cannot_be_read_is_written_again(redis: Redis, field: str, value: str) -> None:
    registry = Registry()
    registry.put(resource("broken"))
    registry.put(resource("sound"))
    await observe(redis, registry.all(), registry, Runs(), 0)
    await redis.hset("sem:{payments/broken}:config", field, value)
    seen = (await observe(redis, registry.all(), registry, Runs(), 0)).found
    assert [one.config for one in seen] == [one.config(0) for one in registry.all()]
