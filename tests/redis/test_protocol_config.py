"""What the scripts make of a config: written, changed, fenced, deleted, left to end."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from tests.redis.calls import CLOSED, GRANTED, NOT_CONFIGURED, QUEUED, fill, queue, shown
from tests.redis.conftest import Process

from distributed_semaphore.protocol import Config, Keys, State, declare, forget, reap


async def test_a_raised_limit_is_granted_at_once_and_in_order(processes, redis, name):
    alice, bob, _ = processes
    await fill(alice)
    waiting = await queue(bob, 4)
    await declare(redis, name, Config(limit=5, lease_ms=2000, uid="uid", generation=2))
    assert (await bob.message()).split()[3::2] == waiting[:3]


async def test_a_lowered_limit_evicts_nobody_and_grants_nothing_until_it_fits(processes, redis, name):
    alice, bob, _ = processes
    first, second = await fill(alice)
    [waiting] = await queue(bob, 1)
    await declare(redis, name, Config(limit=1, lease_ms=2000, uid="uid", generation=2))
    assert (await shown(redis, name)).holder_count == 2
    await alice.release(first)
    assert [holder.token for holder in (await shown(redis, name)).holders] == [second]
    await alice.release(second)
    assert [holder.token for holder in (await shown(redis, name)).holders] == [waiting]


async def test_limit_zero_keeps_its_waiters(processes, redis, name):
    """kueue#14965: limit 0 with waiters, then 3: three hold."""
    _, bob, _ = processes
    await declare(redis, name, Config(limit=0, lease_ms=2000, uid="uid", generation=2))
    waiting = await queue(bob, 5)
    await reap(redis, [name])
    assert (await shown(redis, name)).waiter_count == 5
    await declare(redis, name, Config(limit=3, lease_ms=2000, uid="uid", generation=3))
    assert [holder.token for holder in (await shown(redis, name)).holders] == waiting[:3]


async def test_a_paused_semaphore_queues_and_grants_nothing_until_it_is_resumed(processes, redis, name):
    _, bob, _ = processes
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=2, state=State.PAUSED))
    waiting = await queue(bob, 2)
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=3))
    assert [holder.token for holder in (await shown(redis, name)).holders] == waiting


async def test_a_closed_semaphore_refuses_and_sends_its_waiters_away(processes, redis, name):
    alice, bob, _ = processes
    held = await fill(alice)
    await queue(bob, 2)
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=2, state=State.CLOSED))
    assert await bob.message() == "r"
    assert (await bob.ask(bob.token()))[0] == CLOSED
    snapshot = await shown(redis, name)
    assert (snapshot.waiter_count, [holder.token for holder in snapshot.holders]) == (0, held)
    assert (await alice.renew(held=tuple(held)))[3] == []


async def test_without_a_config_nobody_gets_in(redis, name):
    """prefect: a missing limit means no limit there; here it means no slot."""
    assert (await Process(redis, name, "alice").ask("alice.1.1"))[0] == NOT_CONFIGURED
    assert await redis.keys(Keys.of(name).prefix + "*") == []


@pytest.mark.parametrize(
    ("late", "accepted"),
    [
        (Config(limit=9, lease_ms=2000, uid="uid", generation=4, epoch=7), False),
        (Config(limit=9, lease_ms=2000, uid="uid", generation=6, epoch=6), False),
        (Config(limit=9, lease_ms=2000, uid="other", generation=1, epoch=6), False),
        (Config(limit=9, lease_ms=2000), False),
        (Config(limit=9, lease_ms=2000, uid="uid", generation=6, epoch=7), True),
        (Config(limit=9, lease_ms=2000, uid="uid", generation=5, epoch=8), True),
        (Config(limit=9, lease_ms=2000, uid="other", generation=1, epoch=7), True),
    ],
)
async def test_a_config_is_fenced_by_uid_generation_and_epoch(redis, name, late, accepted):
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=5, epoch=7))
    assert await declare(redis, name, late) is accepted
    assert (await shown(redis, name)).config.limit == (9 if accepted else 2)


async def test_a_config_of_limit_lease_and_state_is_enough(redis, name):
    """A hand, or an older operator, writes no more; who has to wait met a fault of Lua, and who looked a KeyError."""
    alice = Process(redis, name, "alice")
    await redis.hset(alice.keys.config, mapping={"limit": 1, "lease": 2000, "state": "Active"})
    await alice.renew()
    held, waiting = alice.token(), alice.token()
    assert (await alice.ask(held))[0] == GRANTED
    assert (await alice.ask(waiting))[0] == QUEUED
    assert (await shown(redis, name)).config == Config(limit=1, lease_ms=2000)
    _, _, _, own, _ = await alice.apply(release=(held,))
    assert own[0] == waiting
    assert await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=1))
    assert (await shown(redis, name)).config.uid == "uid"


async def test_a_deleted_semaphore_goes_with_its_last_holder(processes, redis, name):
    alice, bob, _ = processes
    first, second = await fill(alice)
    await queue(bob, 2)
    assert await forget(redis, name, "uid") == 2
    assert await bob.message() == "c"
    assert (await bob.ask(bob.token()))[0] == CLOSED
    for key in await redis.keys(alice.keys.prefix + "*"):
        assert 0 < await redis.pttl(key) <= 62_000
    assert (await alice.renew(held=(first, second)))[3] == []
    await alice.release(first)
    await alice.release(second)
    assert await redis.keys(alice.keys.prefix + "*") == []


async def test_a_deleted_semaphore_without_holders_tells_latecomers_for_one_lease(processes, redis, name):
    _, bob, _ = processes
    await declare(redis, name, Config(limit=0, lease_ms=2000, uid="uid", generation=2))
    await queue(bob, 2)
    assert await forget(redis, name, "uid") == 0
    assert (await bob.ask(bob.token()))[0] == CLOSED
    [left] = await redis.keys(bob.keys.prefix + "*")
    assert left == bob.keys.prefix + "counters"
    assert 0 < await redis.pttl(left) <= 2000


async def test_forgetting_leaves_another_resources_config_alone(processes, redis, name):
    assert await forget(redis, name, "another uid") == 0
    assert (await shown(redis, name)).config.limit == 2


async def test_a_leader_that_came_too_late_cannot_forget(redis, name):
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=1, epoch=2**51 + 8))
    assert await forget(redis, name, "uid", 2**51 + 7) is None
    assert (await shown(redis, name)).config.limit == 2
    assert await forget(redis, name, "uid", 2**51 + 8) == 0


async def test_a_name_wanted_again_before_its_last_holder_left_keeps_that_holder(processes, redis, name):
    alice, _, _ = processes
    [held] = await fill(alice, 1)
    await forget(redis, name, "uid")
    assert await declare(redis, name, Config(limit=1, lease_ms=2000, uid="new", generation=1))
    assert {await redis.pttl(key) for key in await redis.keys(alice.keys.prefix + "*")} == {-1}
    assert (await alice.ask(alice.token()))[0] == QUEUED
    assert await alice.release(held) == 1


async def test_more_grants_than_one_call_may_make_are_all_made(redis, name):
    """A limit raised from 1 to 5,000 strands nobody."""
    await declare(redis, name, Config(limit=0, lease_ms=60_000, uid="uid", generation=1))
    alice = Process(redis, name, "alice")
    await alice.listen()
    await alice.renew()
    for start in range(0, 5000, 500):
        await alice.apply(acquire=tuple((f"alice.{start + i}.1", "", 0) for i in range(500)))
    await declare(redis, name, Config(limit=5000, lease_ms=60_000, uid="uid", generation=2))
    snapshot = await shown(redis, name)
    assert (snapshot.holder_count, snapshot.waiter_count) == (5000, 0)
    await alice.listener.aclose()


async def test_keys_of_a_semaphore_without_an_owner_end_after_their_lifetime(redis, name):
    """sidekiq#3323, redisson#4100: thousands of semaphores, used once, must not stay for ever."""
    await declare(redis, name, Config(limit=1, lease_ms=1000, lifetime_ms=60_000))
    alice = Process(redis, name, "alice")
    await alice.listen()
    await alice.renew()
    held, waiting = alice.token(), alice.token()
    await alice.ask(held)
    await alice.ask(waiting)
    keys = await redis.keys(alice.keys.prefix + "*")
    assert {key.rsplit(":", 1)[1] for key in keys} == {
        *("config", "holders", "queue", "clients", "grants", "identities", "counters"),
    }
    assert {key: 0 < await redis.pttl(key) <= 60_000 for key in keys} == dict.fromkeys(keys, True)
    await alice.listener.aclose()


async def test_a_lifetime_given_or_taken_reaches_every_key(processes, redis, name):
    """Else a key that was there before stays for ever, or ends under its holders."""
    alice, bob, _ = processes
    await fill(alice)
    await queue(bob, 1)
    keys = await redis.keys(alice.keys.prefix + "*")
    assert len(keys) == 7
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=2, lifetime_ms=60_000))
    assert [key for key in keys if not 0 < await redis.pttl(key) <= 60_000] == []
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=3))
    assert {await redis.pttl(key) for key in keys} == {-1}


async def test_a_deletion_that_fails_was_not_announced(server, processes, redis, name):
    """What is announced has been written, or a client acts on what is not so."""
    alice, bob, _ = processes
    await fill(alice)
    await queue(bob, 1)
    await redis.execute_command("ACL", "SETUSER", "no-hset", "on", "nopass", "~*", "&*", "+@all", "-hset")
    async with Redis.from_url(server.url, username="no-hset", password="any") as limited:
        with pytest.raises(ResponseError, match=r"can't run this command|permission"):
            await forget(limited, name, "uid")
    await redis.acl_deluser("no-hset")
    assert await bob.message(timeout=0.05) is None
