"""What the scripts put right after a loss of data: slots, places, fences."""

from __future__ import annotations

import asyncio

from tests.redis.calls import CONFIG, QUEUED, fill, lose_everything, queue, shown, wait_for_the_end_of_the_reclaim

from distributed_semaphore.protocol import Config, declare, forget, mark, reap


async def test_after_a_loss_holders_put_their_slots_back_and_nobody_gets_in_meanwhile(processes, redis, name):
    """openstack-resource-controller#655: FLUSHALL under load; no over-admission, no lost work (a grace period)."""
    alice, bob, _ = processes
    slots = [(token, *(await alice.ask(token))[1:]) for token in (alice.token(), alice.token())]
    await lose_everything(redis, name)
    await declare(redis, name, CONFIG, reclaim_ms=1000)

    await bob.renew()
    [newcomer] = await queue(bob, 1)
    assert (await alice.renew(claims=slots))[3] == []
    snapshot = await shown(redis, name)
    assert [(holder.token, holder.fence) for holder in snapshot.holders] == [slot[:2] for slot in slots]
    assert (snapshot.counters.reclaimed, snapshot.waiter_count) == (2, 1)

    await wait_for_the_end_of_the_reclaim(redis, name)
    await reap(redis, [name])
    assert (await shown(redis, name)).waiter_count == 1
    await alice.release(slots[0][0])
    granted = (await shown(redis, name)).holders[-1]
    assert granted.token == newcomer
    assert granted.fence > max(fence for _, fence, _ in slots)


async def test_a_slot_that_nobody_puts_back_is_granted_when_the_reclaim_ends(processes, redis, name):
    alice, bob, _ = processes
    await fill(alice)
    await lose_everything(redis, name)
    await declare(redis, name, CONFIG, reclaim_ms=300)
    await bob.renew()
    waiting = await queue(bob, 2)
    head = (await bob.renew(waiting=tuple(waiting)))[0]
    assert 0 < head[6] - head[0] <= 300  # when to look again
    await wait_for_the_end_of_the_reclaim(redis, name)
    assert (await bob.renew(waiting=tuple(waiting)))[4][::3] == waiting


async def test_a_claim_whose_lease_has_run_out_is_refused(processes, redis, name):
    """A renewal delayed in the network must not take back what is somebody else's by now."""
    alice, _, _ = processes
    token = alice.token()
    _, fence, expiry = await alice.ask(token)
    await lose_everything(redis, name)
    await declare(redis, name, CONFIG, reclaim_ms=1000)
    assert (await alice.renew(claims=[(token, fence, expiry - 60_000)]))[3] == [token]
    assert (await shown(redis, name)).holder_count == 0


async def test_an_entry_removed_by_hand_stays_lost(processes, redis, name):
    alice, _, _ = processes
    token = alice.token()
    _, fence, expiry = await alice.ask(token)
    await redis.zrem(alice.keys.prefix + "holders", token)
    assert (await alice.renew(claims=[(token, fence, expiry)]))[3] == [token]


async def test_waiters_rejoin_in_their_old_order_after_a_loss(processes, redis, name):
    alice, bob, carol = processes
    await fill(alice)
    early, late = bob.token(), carol.token()
    _, early_ticket, _ = await bob.ask(early)
    _, late_ticket, _ = await carol.ask(late)
    await lose_everything(redis, name)
    await declare(redis, name, CONFIG, reclaim_ms=300)
    for process in processes:
        assert (await process.renew())[1] == 1
    await asyncio.sleep(0.005)  # tickets of one millisecond run ahead of the clock
    [newcomer] = await queue(alice, 1)
    await carol.ask(late, late_ticket)
    await bob.ask(early, early_ticket)
    last = alice.token()
    await alice.ask(last)
    assert [waiter.token for waiter in (await shown(redis, name)).waiters] == [early, late, newcomer, last]


async def test_a_second_write_of_the_config_does_not_end_a_reclaim(processes, redis, name):
    alice, _, _ = processes
    await lose_everything(redis, name)
    await declare(redis, name, CONFIG, reclaim_ms=60_000)
    await declare(redis, name, Config(limit=3, lease_ms=2000, uid="uid", generation=2))
    await alice.renew()
    assert (await alice.ask(alice.token()))[0] == QUEUED


async def test_fences_rise_beyond_a_loss_although_the_servers_clock_is_behind(processes, redis, name):
    alice, _, _ = processes
    known = int((await alice.ask(alice.token()))[1]) + 3_600_000_000
    await lose_everything(redis, name)
    await declare(redis, name, CONFIG, fence=known)
    await alice.renew()
    assert (await alice.ask(alice.token()))[1] == known + 1


async def test_a_server_that_was_restarted_lets_holders_put_back_what_it_may_have_lost(processes, redis, name):
    """The config has survived, in an old dump or a replica, and a slot has not."""
    alice, bob, _ = processes
    [held] = await fill(alice, 1)
    expiry = (await shown(redis, name)).server_time * 1000 + 2000
    assert await mark(redis, [(name, "uid", 2000), ("tests/none", "uid", 1)], "first") == [1, 0], "nothing of before"
    assert await mark(redis, [(name, "uid", 2000)], "first") == [1]
    for key in ("holders", "grants"):
        await redis.zrem(alice.keys.prefix + key, held)
    assert await mark(redis, [(name, "another", 2000)], "second") == [0]
    assert await mark(redis, [(name, "uid", 2000)], "second") == [2]
    assert await mark(redis, [(name, "uid", 2000)], "second") == [1]
    assert (await bob.ask(bob.token()))[0] == QUEUED
    assert (await alice.renew(claims=((held, 1, round(expiry)),)))[3] == []
    snapshot = await shown(redis, name)
    assert [holder.token for holder in snapshot.holders] == [held]
    assert snapshot.reclaim_until is not None


async def test_fences_rise_beyond_a_loss_although_a_deletion_is_not_over(processes, redis, name):
    alice, _, _ = processes
    known = int((await alice.ask(alice.token()))[1]) + 3_600_000_000
    await forget(redis, name, "uid")
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="new", generation=1), fence=known)
    assert (await alice.ask(alice.token()))[1] == known + 1


async def test_a_slot_put_back_after_its_process_rejoined_waits_no_longer(processes, redis, name):
    """The message of a grant arrives after data were lost, and its process had taken it for one that waits."""
    alice, _, _ = processes
    token = alice.token()
    _, fence, expiry = await alice.ask(token)
    await lose_everything(redis, name)
    await declare(redis, name, CONFIG, reclaim_ms=1000)
    assert (await alice.ask(token, "?"))[0] == QUEUED
    assert (await alice.renew(claims=[(token, fence, expiry)]))[3] == []
    snapshot = await shown(redis, name)
    assert (snapshot.holder_count, snapshot.waiter_count) == (1, 0)
