"""The scripts, call by call, on a real server: who is granted, in which order, and what a call may be repeated."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.redis.calls import GRANTED, QUEUED, TOO_HEAVY, WOULD_WAIT, fill, queue, shown
from tests.redis.conftest import Process

from distributed_semaphore.protocol import Config, declare
from distributed_semaphore.protocol.scripts import APPLY, SCRIPTS, Call, run, split_applied


async def test_a_release_grants_to_the_head_and_wakes_its_process_alone(processes, redis, name):
    alice, bob, carol = processes
    first, second = await fill(alice)
    [waiting] = await queue(bob, 1)
    await queue(carol, 1)

    assert await alice.release(first) == 1
    kind, now, expiry, token, fence = (await bob.message()).split()
    assert (kind, token) == ("g", waiting)
    assert int(expiry) - int(now) == 2000
    assert await carol.message(timeout=0.05) is None
    assert {holder.token for holder in (await shown(redis, name)).holders} == {second, waiting}
    assert int(fence) == max(holder.fence for holder in (await shown(redis, name)).holders)


async def test_slots_are_granted_in_order_of_arrival_whatever_the_process(processes, redis, name):
    alice, bob, carol = processes
    held = await fill(alice)
    expected = []
    for process in (bob, carol, alice, carol, bob):
        expected += await queue(process, 1)
    order = []
    for _ in expected:
        await alice.release(held.pop(0))
        holders = (await shown(redis, name)).holders
        order += [holder.token for holder in holders if holder.token not in [*held, *order]]
        held = [holder.token for holder in holders]
    assert order == expected


async def test_an_acquire_sent_again_takes_no_second_slot_and_keeps_its_place(processes, redis, name):
    """curator#835, token-throttle#21: the reply of an acquire is lost."""
    alice, bob, _ = processes
    held, other = alice.token(), alice.token()
    granted = await alice.ask(held)
    assert await alice.ask(held, "?") == granted
    await alice.ask(other)
    first, second = await queue(bob, 2)
    again = await bob.ask(first, "?")
    assert again[0] == QUEUED
    snapshot = await shown(redis, name)
    assert (snapshot.holder_count, [waiter.token for waiter in snapshot.waiters]) == (2, [first, second])


async def test_a_release_sent_again_or_by_a_stranger_changes_nothing(processes, redis, name):
    """docket PR #223, redisson#5066: release twice, by a stranger, after expiry."""
    alice, bob, _ = processes
    first, _second = await fill(alice)
    assert await bob.release("stranger.1.1") == 0
    assert await alice.release(first) == 1
    assert await alice.release(first) == 0
    assert (await shown(redis, name)).holder_count == 1


async def test_leaving_the_queue_is_releasing_the_place(processes, redis, name):
    alice, bob, _ = processes
    await fill(alice)
    [waiting] = await queue(bob, 1)
    assert await bob.release(waiting) == 2
    snapshot = await shown(redis, name)
    assert (snapshot.waiter_count, snapshot.counters.left) == (0, 1)


async def test_who_may_not_wait_is_told_so_and_leaves_no_trace(processes, redis, name):
    alice, bob, _ = processes
    await fill(alice)
    assert (await bob.ask(bob.token(), "", "x"))[0] == WOULD_WAIT
    assert (await shown(redis, name)).waiter_count == 0


async def test_weights_count_and_the_head_is_not_overtaken_by_lighter_requests(processes, redis, name):
    """hazelcast, airflow#29474: a stream of light requests does not starve a heavy one."""
    alice, bob, carol = processes
    await declare(redis, name, Config(limit=4, lease_ms=2000, uid="uid", generation=2))
    light = await fill(alice, 4)
    heavy = bob.token(weight=3)
    assert (await bob.ask(heavy))[0] == QUEUED
    [behind] = await queue(carol, 1)
    for token in light[:3]:
        assert heavy not in {holder.token for holder in (await shown(redis, name)).holders}
        await alice.release(token)
    snapshot = await shown(redis, name)
    assert {holder.token for holder in snapshot.holders} == {light[3], heavy}
    assert snapshot.held == 4
    await bob.release(heavy)
    snapshot = await shown(redis, name)
    assert ({holder.token for holder in snapshot.holders}, snapshot.held) == ({light[3], behind}, 2)


async def test_a_weight_above_the_limit_is_refused_at_once(processes, redis, name):
    """airflow PR #20178: weight 4 of limit 2 could never be granted."""
    alice, _, _ = processes
    assert (await alice.ask(alice.token(weight=3)))[0] == TOO_HEAVY


async def test_priorities_hold_while_waiting(processes, redis, name):
    """solid_queue#237: a more urgent request goes first, equals in order of arrival."""
    alice, bob, _ = processes
    await fill(alice)
    [plain] = await queue(bob, 1)
    urgent, more_urgent = bob.token(), bob.token()
    await bob.ask(urgent, "", 5)
    await bob.ask(more_urgent, "", 8000)
    snapshot = await shown(redis, name)
    assert [waiter.token for waiter in snapshot.waiters] == [more_urgent, urgent, plain]
    assert [waiter.priority for waiter in snapshot.waiters] == [8000, 5, 0]


async def test_fences_rise_with_every_grant(processes):
    alice, _, _ = processes
    fences = []
    for _ in range(50):
        token = alice.token()
        _, fence, _ = await alice.ask(token)
        fences.append(fence)
        await alice.release(token)
    assert all(earlier < later for earlier, later in pairwise(fences))


async def test_forgotten_scripts_are_sent_again_and_executed_once(processes, redis, name):
    """limits, bullmq: SCRIPT FLUSH between any two calls and inside a batch."""
    alice, _, _ = processes
    await redis.script_flush()
    calls = [Call(APPLY, alice.keys, ["alice", 0, alice.token(), "", 0]) for _ in range(2)]
    replies = await run(redis, calls)
    assert [split_applied(reply, 0, 1)[2][0] for reply in replies] == [GRANTED, GRANTED]
    snapshot = await shown(redis, name)
    assert (snapshot.holder_count, snapshot.counters.granted) == (2, 2)


async def test_a_release_costs_the_same_with_10_and_10000_waiters(redis, name):
    """sidekiq#2944, bullmq#909: one release, one process woken, whatever the length of the queue."""

    async def commands_of_a_release(waiters: int) -> int:
        which = f"{name}-{waiters}"
        await declare(redis, which, Config(limit=1, lease_ms=60_000, uid="uid", generation=1))
        alice, bob = Process(redis, which, "alice"), Process(redis, which, "bob")
        await bob.listen()
        await bob.renew()
        held = alice.token()
        await alice.ask(held)
        for start in range(0, waiters, 500):
            batch = range(start, min(start + 500, waiters))
            await bob.apply(acquire=tuple((f"bob.{i}.1", "", 0) for i in batch))
        before = await redis.info("commandstats")
        assert await alice.release(held) == 1
        after = await redis.info("commandstats")
        await bob.listener.aclose()
        return sum(after[kind]["calls"] - before.get(kind, {"calls": 0})["calls"] for kind in after)

    assert await commands_of_a_release(10) == await commands_of_a_release(10_000)


async def test_a_waiter_beyond_max_wait_is_passed_over(processes, redis, name):
    alice, bob, carol = processes
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=2, max_wait_ms=60_000))
    first, _ = await fill(alice)
    old = bob.token()
    await bob.ask(old, 1)  # a ticket of long ago
    [waiting] = await queue(carol, 1)
    await alice.release(first)
    snapshot = await shown(redis, name)
    assert waiting in {holder.token for holder in snapshot.holders}
    assert (snapshot.waiter_count, snapshot.counters.overdue) == (0, 1)


async def test_every_key_has_the_tag_of_its_semaphore(processes, redis, name):
    alice, _, _ = processes
    await fill(alice)
    keys = await redis.keys("*" + name + "}*")
    assert len(keys) == 6
    assert all(key.startswith("sem:{" + name + "}:") for key in keys)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_every_script_begins_with_its_contract(script):
    text = script.source.splitlines()
    header = "\n".join(text[: next(i for i, line in enumerate(text) if not line.startswith("--"))])
    assert "-- ARGV" in header
    assert "-- Reply" in header
