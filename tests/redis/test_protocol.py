"""The scripts, call by call, on a real server."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from tests.redis.conftest import Process

from distributed_semaphore.protocol import (
    Config,
    Keys,
    State,
    audit,
    declare,
    evict,
    forget,
    inspect,
    mark,
    reap,
    revoke,
)
from distributed_semaphore.protocol.scripts import APPLY, SCRIPTS, Call, run
from distributed_semaphore.protocol.snapshot import TICKET_EPOCH_MS

GRANTED, QUEUED, CLOSED, FULL, TOO_HEAVY, NOT_CONFIGURED, WOULD_WAIT = 1, 2, -1, -2, -3, -4, -5


async def fill(process: Process, slots: int = 2) -> list[str]:
    """Take every slot."""
    tokens = [process.token() for _ in range(slots)]
    for token in tokens:
        assert (await process.ask(token))[0] == GRANTED
    return tokens


async def queue(process: Process, n: int) -> list[str]:
    tokens = [process.token() for _ in range(n)]
    for token in tokens:
        assert (await process.ask(token))[0] == QUEUED
    return tokens


async def shown(redis: Redis, name: str):
    [snapshot] = await inspect(redis, [name])
    assert not isinstance(snapshot, Exception)
    return snapshot


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


async def wait_until_deaf(redis: Redis, process: Process) -> None:
    while (await redis.pubsub_numsub(process.keys.channel(process.client)))[0][1]:
        await asyncio.sleep(0.001)


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


async def test_a_full_queue_refuses_but_first_looks_for_the_dead(processes, redis, name):
    alice, bob, carol = processes
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=2, max_waiting=3))
    await fill(alice)
    await queue(bob, 3)
    assert (await carol.ask(carol.token()))[0] == FULL
    await redis.zadd(bob.keys.prefix + "clients", {"bob": 1})
    assert (await carol.ask(carol.token()))[0] == QUEUED
    assert (await shown(redis, name)).waiter_count == 1


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


async def test_a_lost_wake_up_is_healed_by_the_next_heartbeat(processes, redis, name):
    """redisson#5762: wake-ups may be dropped."""
    alice, bob, _ = processes
    first, _ = await fill(alice)
    tokens = await queue(bob, 3)
    await alice.release(first)
    granted, gone = (await bob.renew(waiting=tuple(tokens)))[4:]
    assert (granted[0], len(granted), gone) == (tokens[0], 3, [])


async def test_forgotten_scripts_are_sent_again_and_executed_once(processes, redis, name):
    """limits, bullmq: SCRIPT FLUSH between any two calls and inside a batch."""
    alice, _, _ = processes
    await redis.script_flush()
    calls = [Call(APPLY, alice.keys, ["alice", 0, alice.token(), "", 0]) for _ in range(2)]
    replies = await run(redis, calls)
    assert [reply[2][0] for reply in replies] == [GRANTED, GRANTED]
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


async def lose_everything(redis: Redis, name: str) -> None:
    """Remove the semaphore's keys, as a flush or an empty restart does."""
    await redis.delete(*await redis.keys(Keys.of(name).prefix + "*"))


CONFIG = Config(limit=2, lease_ms=2000, uid="uid", generation=1)


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


async def wait_for_the_end_of_the_reclaim(redis: Redis, name: str) -> None:
    while (await shown(redis, name)).reclaim_until:
        await asyncio.sleep(0.02)


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
    assert 0 < snapshot.expected_wait(2) == 2 * snapshot.pace < 0.06
    assert len(waiting) == 2


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


async def expire(process: Process, token: str) -> None:
    """Let the lease of a slot run out, unnoticed by anybody."""
    await process.redis.zadd(process.keys.prefix + "holders", {token: 1}, xx=True)


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


async def test_fences_rise_beyond_a_loss_although_a_deletion_is_not_over(processes, redis, name):
    alice, _, _ = processes
    known = int((await alice.ask(alice.token()))[1]) + 3_600_000_000
    await forget(redis, name, "uid")
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="new", generation=1), fence=known)
    assert (await alice.ask(alice.token()))[1] == known + 1


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
