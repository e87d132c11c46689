"""What operator and command line do beside the clients: look, count, audit, take away."""

from __future__ import annotations

import asyncio

from tests.redis.calls import GRANTED, fill, queue, shown
from tests.redis.conftest import Process

from distributed_semaphore.protocol import Config, audit, declare, evict, inspect, reap, revoke
from distributed_semaphore.protocol.snapshot import TICKET_EPOCH_MS


async def test_housekeeping_takes_back_what_has_expired_although_slots_are_free(processes, redis, name):
    """A status must name no dead holder, whether or not somebody wants its slot."""
    alice, _, _ = processes
    [crashed] = await fill(alice, 1)
    await redis.zadd(alice.keys.prefix + "holders", {crashed: 1})
    assert await reap(redis, [name]) == [False]
    snapshot = await shown(redis, name)
    assert (snapshot.held, snapshot.holder_count, snapshot.counters.expired) == (0, 0, 1)
    assert await redis.exists(alice.keys.prefix + "grants") == 0


async def test_housekeeping_drops_dead_waiters_although_no_slot_is_free(processes, redis, name):
    alice, bob, carol = processes
    await fill(alice)
    await queue(bob, 2)
    [alive] = await queue(carol, 1)
    await redis.zadd(alice.keys.prefix + "clients", {"bob": 1})
    await reap(redis, [name])
    snapshot = await shown(redis, name)
    assert ([waiter.token for waiter in snapshot.waiters], snapshot.counters.abandoned) == ([alive], 2)


async def test_whatever_stands_in_redis_a_look_gives_an_answer(processes, redis, name):
    alice, _, _ = processes
    await alice.renew(identity="not JSON")
    await fill(alice, 1)
    assert (await shown(redis, name)).holders[0].identity == {}
    await redis.hset(alice.keys.config, mapping={"limit": "many", "generation": "x"})
    [unreadable] = await inspect(redis, [name])
    assert isinstance(unreadable, Exception)
    assert await declare(redis, name, Config(limit=3, lease_ms=2000, uid="uid", generation=2))
    assert (await shown(redis, name)).config.limit == 3


async def test_revoking_takes_slots_and_places_and_grants_on(processes, redis, name):
    alice, bob, carol = processes
    first, second = await fill(alice)
    [leaving] = await queue(bob, 1)
    [waiting] = await queue(carol, 1)
    assert await revoke(redis, name, [first, leaving, "nobody.1.1"]) == 2
    assert await alice.message() == await bob.message() == "r"
    assert (await carol.message()).split()[3] == waiting
    snapshot = await shown(redis, name)
    assert ({holder.token for holder in snapshot.holders}, snapshot.waiter_count) == ({second, waiting}, 0)
    assert snapshot.counters.revoked == 2


async def test_the_longest_waiting_is_found_behind_others_of_higher_priority(processes, redis, name):
    alice, bob, _ = processes
    assert (await shown(redis, name)).oldest_waiter_since is None
    await fill(alice)
    for priority, ticket in ((0, 50_000), (3, 40_000), (-8000, 7_000), (-8000, 9_000), (8000, 60_000)):
        await bob.ask(bob.token(), ticket, priority)
    [snapshot] = await inspect(redis, [name], 2)
    assert [waiter.priority for waiter in snapshot.waiters] == [8000, 3]
    assert snapshot.oldest_waiter_since == TICKET_EPOCH_MS / 1000 + 7


async def test_an_audit_finds_nothing_where_only_scripts_have_worked(processes, redis, name):
    alice, bob, carol = processes
    first, second = await fill(alice)
    await queue(bob, 2)
    heavy = carol.token(weight=2)
    await carol.ask(heavy)
    assert await audit(redis, [name]) == [(False, {})]
    for token in (first, second):
        await alice.release(token)
    assert await audit(redis, [name]) == [(False, {})]
    for holder in (await shown(redis, name)).holders:
        await bob.release(holder.token)
    assert {holder.token for holder in (await shown(redis, name)).holders} == {heavy}
    assert await audit(redis, [name]) == [(False, {})]


async def test_an_audit_puts_right_whatever_disagrees(processes, redis, name):
    alice, bob, _ = processes
    first, _second = await fill(alice)
    [waiting] = await queue(bob, 1)
    prefix = alice.keys.prefix
    await redis.zrem(prefix + "grants", first)
    await redis.zadd(prefix + "grants", {"gone.1.1": 9 * 10**15})
    await redis.hset(prefix + "identities", "gone", "{}")
    await redis.zadd(prefix + "queue", {"by hand": 1})
    tally = (await redis.hget(prefix + "counters", "tally")).split()
    await redis.hset(prefix + "counters", "tally", " ".join([*tally[:2], "7", *tally[3:]]))
    assert await audit(redis, [name]) == [
        (False, {"token": 1, "unheld": 1, "ungranted": 1, "identity": 1, "extra": 1}),
    ]
    assert await audit(redis, [name]) == [(False, {})]
    snapshot = await shown(redis, name)
    assert (snapshot.held, snapshot.holder_count, snapshot.waiter_count) == (2, 2, 1)
    assert (await alice.ask(first, "?"))[0] == GRANTED
    await alice.release(first)
    assert waiting in {holder.token for holder in (await shown(redis, name)).holders}


async def test_an_audit_removes_holders_that_are_no_tokens_and_grants_what_they_held(processes, redis, name):
    alice, bob, _ = processes
    await fill(alice, 1)
    await redis.zadd(alice.keys.prefix + "holders", {"by hand": 10**14})
    [waiting] = await queue(bob, 1)
    assert await audit(redis, [name]) == [(False, {"token": 1})]
    assert waiting in {holder.token for holder in (await shown(redis, name)).holders}


async def test_an_audit_keeps_fences_rising_after_a_restore_from_an_old_dump(processes, redis, name):
    alice, _, _ = processes
    [held] = await fill(alice, 1)
    await redis.zadd(alice.keys.prefix + "grants", {held: 5 * 10**15})
    assert await audit(redis, [name]) == [(False, {"fence": 1})]
    assert (await alice.ask(alice.token()))[1] == 5 * 10**15 + 1


async def test_the_slots_and_places_of_one_pod_are_taken_away(processes, redis, name):
    alice, bob, carol = processes
    await alice.renew(identity='{"pod":"a","namespace":"n","uid":"u-1"}')
    await bob.renew(identity='{"pod":"b","namespace":"n","uid":"u-2"}')
    await fill(alice)
    await queue(alice, 3)
    [waiting] = await queue(bob, 1)
    await queue(carol, 1)
    assert await evict(redis, name, "uid", "u-3") == (0, 0)
    assert await evict(redis, name, "pod", "a", "another") == (0, 0)
    assert await evict(redis, name, "uid", "u-1") == (2, 3)
    assert await alice.message() == "r"
    snapshot = await shown(redis, name)
    assert waiting in {holder.token for holder in snapshot.holders}
    assert (snapshot.holder_count, snapshot.waiter_count, snapshot.counters.revoked) == (2, 0, 2)


async def test_a_pod_with_more_slots_than_one_call_looks_at_loses_them_all(redis, name):
    await declare(redis, name, Config(limit=3001, lease_ms=60_000, uid="uid", generation=1))
    made = [Process(redis, name, client) for client in ("stays", "goes")]
    for process in made:
        await process.renew(identity=f'{{"uid":"{process.client}"}}')
        await process.apply(acquire=tuple((process.token(), "", 0) for _ in range(1500)))
    last = made[0].token()
    await made[0].ask(last)
    assert await evict(redis, name, "uid", "goes") == (1500, 0)
    assert (await shown(redis, name)).holder_count == 1501


async def test_waits_are_counted_by_length_and_grants_by_pace(processes, redis, name):
    alice, bob, _ = processes
    first, second = await fill(alice)
    waiting = await queue(bob, 2)
    await asyncio.sleep(0.06)
    await alice.release(first)
    await asyncio.sleep(0.06)
    await alice.release(second)
    snapshot = await shown(redis, name)
    waits = snapshot.counters.waits
    assert (waits[0], sum(waits), sum(waits[5:])) == (2, 4, 2)
    assert snapshot.counters.waited_ms >= 60 + 120
    assert snapshot.expected_wait(2) == 2 * snapshot.pace >= 2 * 0.06, "from the first grants on"
    assert len(waiting) == 2
