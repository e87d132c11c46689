"""Parts of the operator's sweep that only Redis can answer for."""

from __future__ import annotations

from tests.unit.factories import resource

from distributed_semaphore.protocol import Keys, declare, inspect
from semaphore_operator.leftovers import Leftovers
from semaphore_operator.registry import Registry
from semaphore_operator.runs import Runs


async def test_a_config_of_another_run_opens_a_reclaim_even_for_an_operator_that_has_just_started(redis):
    api, other = resource("runs"), resource("runs-other")
    for one in (api, other):
        await declare(redis, one.semaphore, one.config(0))
    first = Runs()
    assert await first.note(redis, [api, other]) == []
    await redis.hset(api.keys.config, "run", "of the server before")
    assert await first.note(redis, [api, other]) == [], "this run is noted already"
    assert await Runs().note(redis, [api, other, resource("runs-none")]) == [api]
    [snapshot] = await inspect(redis, [api.semaphore])
    assert 29 < snapshot.reclaim_until - snapshot.server_time <= 30
    first.forget(api.uid)
    assert await first.note(redis, [api, other]) == []


async def test_a_config_without_resource_is_found_and_stays(redis):
    await redis.flushdb()
    registry, known, gone = Registry(), resource("known"), resource("gone")
    registry.put(known)
    for one in (known, gone):
        await declare(redis, one.semaphore, one.config(0))
    await redis.hset(Keys.of("payments/of a client").config, "limit", 1)
    await declare(redis, "elsewhere/api", gone.config(0))
    leftovers, narrow = Leftovers([]), Leftovers(["elsewhere"])
    for walk in (leftovers, narrow):
        await walk.look(redis, registry)
    assert leftovers.names == {"payments/gone", "elsewhere/api"}
    assert narrow.names == {"elsewhere/api"}
    assert await redis.exists(gone.keys.config)
    registry.put(resource("gone", deleted="2026-01-02T00:00:00Z"))
    await leftovers.look(redis, registry)
    assert leftovers.names == {"elsewhere/api"}, "what is being deleted is none"
