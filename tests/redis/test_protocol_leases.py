"""What the scripts make of leases that run out and of processes that fall silent."""

from __future__ import annotations

import pytest
from tests.redis.calls import FULL, GRANTED, QUEUED, WOULD_WAIT, expire, fill, queue, shown, wait_until_deaf

from distributed_semaphore.protocol import Config, audit, declare, reap


async def test_a_slot_whose_lease_ran_out_goes_to_the_head(processes, redis, name):
    alice, bob, _ = processes
    crashed, _ = await fill(alice)
    [waiting] = await queue(bob, 1)
    await redis.zadd(alice.keys.prefix + "holders", {crashed: 1})
    await reap(redis, [name])
    snapshot = await shown(redis, name)
    assert waiting in {holder.token for holder in snapshot.holders}
    assert (snapshot.holder_count, snapshot.counters.expired) == (2, 1)
    lost = (await alice.renew(held=(crashed,)))[3]
    assert lost == [crashed]


async def test_a_renewal_extends_to_the_full_lease_of_the_present_config(processes, redis, name):
    """kured#822: a new lease reaches present holders with their next renewal."""
    alice, _, _ = processes
    [held] = await fill(alice, 1)
    await declare(redis, name, Config(limit=2, lease_ms=30_000, uid="uid", generation=2))
    await alice.renew(held=(held,))
    snapshot = await shown(redis, name)
    assert snapshot.holders[0].expires_at - snapshot.server_time == pytest.approx(30, abs=0.5)


async def test_an_unconfirmed_grant_has_a_short_lease(processes, redis, name):
    alice, _, _ = processes
    await declare(redis, name, Config(limit=2, lease_ms=3_600_000, uid="uid", generation=2))
    code, _, expiry = await alice.ask(alice.token())
    assert code == GRANTED
    assert expiry / 1000 - (await shown(redis, name)).server_time == pytest.approx(5, abs=0.5)


async def test_a_head_whose_process_stopped_listening_is_passed_over_at_once(processes, redis, name):
    """argo-workflows#8109, etcd#19597: the head's process is dead."""
    alice, bob, carol = processes
    first, _ = await fill(alice)
    await queue(bob, 3)
    [waiting] = await queue(carol, 1)
    await bob.listener.aclose()
    await wait_until_deaf(redis, bob)
    await alice.release(first)
    assert (await carol.message()).split()[3] == waiting
    snapshot = await shown(redis, name)
    assert (snapshot.waiter_count, snapshot.counters.abandoned) == (0, 3)


async def test_a_process_that_was_passed_over_is_told_and_rejoins_with_its_old_place(processes, redis, name):
    alice, bob, carol = processes
    first, _ = await fill(alice)
    early = bob.token()
    _, ticket, _ = await bob.ask(early)
    [late] = await queue(carol, 1)
    await bob.listener.aclose()
    await wait_until_deaf(redis, bob)
    await alice.release(first)
    await queue(alice, 1)

    await bob.listen()
    lapsed, _, _, _, gone = (await bob.renew(waiting=(early,)))[1:]
    assert (lapsed, gone) == (1, [early])
    await bob.ask(early, ticket)
    snapshot = await shown(redis, name)
    assert snapshot.waiters[0].token == early
    assert late in {holder.token for holder in snapshot.holders}


async def test_waiters_of_a_silent_process_are_dropped_when_their_turn_comes(processes, redis, name):
    alice, bob, carol = processes
    first, _ = await fill(alice)
    await queue(bob, 2)
    [waiting] = await queue(carol, 1)
    await redis.zadd(bob.keys.prefix + "clients", {"bob": 1})
    await alice.release(first)
    assert (await carol.message()).split()[3] == waiting


async def test_a_lost_wake_up_is_healed_by_the_next_heartbeat(processes, redis, name):
    """redisson#5762: wake-ups may be dropped."""
    alice, bob, _ = processes
    first, _ = await fill(alice)
    tokens = await queue(bob, 3)
    await alice.release(first)
    granted, gone = (await bob.renew(waiting=tuple(tokens)))[4:]
    assert (granted[0], len(granted), gone) == (tokens[0], 3, [])


async def test_a_heavy_slot_that_ran_out_and_is_asked_for_again_weighs_once(processes, redis, name):
    alice, _, _ = processes
    await declare(redis, name, Config(limit=4, lease_ms=2000, uid="uid", generation=2))
    heavy = alice.token(weight=2)
    await alice.ask(heavy)
    await expire(alice, heavy)
    assert (await alice.ask(heavy, "?"))[0] == GRANTED
    snapshot = await shown(redis, name)
    assert (snapshot.held, snapshot.holder_count, snapshot.counters.expired) == (2, 1, 1)
    assert await audit(redis, [name]) == [(False, {})]


async def test_a_heartbeat_never_names_a_time_that_has_passed(processes, redis, name):
    """A process that waits looks again at that time: it would do so without a pause."""
    alice, bob, _ = processes
    [crashed] = await fill(alice, 1)
    await redis.hset(alice.keys.config, "reclaim", 10**14)
    [waiting] = await queue(bob, 1)
    await redis.hset(alice.keys.config, "reclaim", 0)
    await expire(alice, crashed)
    reply = await bob.renew(waiting=(waiting,))
    assert reply[4][0] == waiting
    assert reply[0][6] > reply[0][0]


async def test_who_may_not_wait_gets_the_slot_that_ran_out(processes):
    alice, bob, _ = processes
    crashed, _ = await fill(alice)
    await expire(alice, crashed)
    assert (await bob.ask(bob.token(), "", "x"))[0] == GRANTED
    assert (await bob.ask(bob.token(), "", "x"))[0] == WOULD_WAIT


async def test_a_queue_without_places_gives_the_slot_that_ran_out(processes, redis, name):
    alice, bob, _ = processes
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=2, max_waiting=0))
    crashed, _ = await fill(alice)
    await expire(alice, crashed)
    assert (await bob.ask(bob.token()))[0] == GRANTED
    assert (await bob.ask(bob.token()))[0] == FULL


async def test_a_heavy_head_gets_the_slot_that_ran_out_beside_a_free_one(processes, redis, name):
    alice, bob, _ = processes
    await declare(redis, name, Config(limit=3, lease_ms=2000, uid="uid", generation=2))
    crashed, alive = await fill(alice)
    heavy = bob.token(weight=2)
    assert (await bob.ask(heavy))[0] == QUEUED
    await expire(alice, crashed)
    await alice.renew(held=(alive,))
    snapshot = await shown(redis, name)
    assert ({holder.token for holder in snapshot.holders}, snapshot.held) == ({alive, heavy}, 3)


async def test_a_full_queue_that_was_rid_of_the_dead_has_all_their_places(processes, redis, name):
    alice, bob, carol = processes
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=2, max_waiting=2))
    await fill(alice)
    await queue(bob, 2)
    await redis.zadd(bob.keys.prefix + "clients", {"bob": 1})
    answers = (await carol.apply(acquire=tuple((carol.token(), "", 0) for _ in range(3))))[2]
    assert answers[::3] == [QUEUED, QUEUED, FULL]


async def test_a_full_queue_refuses_but_first_looks_for_the_dead(processes, redis, name):
    alice, bob, carol = processes
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=2, max_waiting=3))
    await fill(alice)
    await queue(bob, 3)
    assert (await carol.ask(carol.token()))[0] == FULL
    await redis.zadd(bob.keys.prefix + "clients", {"bob": 1})
    assert (await carol.ask(carol.token()))[0] == QUEUED
    assert (await shown(redis, name)).waiter_count == 1
