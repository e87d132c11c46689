"""The asyncio client on a real server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from tests.redis.conftest import SERVERS

from distributed_semaphore import (
    AcquireTimeout,
    AsyncSemaphore,
    Closed,
    InvalidArgument,
    NotConfigured,
    QueueFull,
    ReleaseOutcome,
    SlotLost,
    State,
    Unavailable,
    WeightTooLarge,
    _session,
)
from distributed_semaphore.protocol import Config, Keys, declare, find, forget, inspect, revoke
from distributed_semaphore.testing import RedisServer

if TYPE_CHECKING:
    from redis.asyncio import Redis

HOLDER = """
import asyncio, sys
from distributed_semaphore import AsyncSemaphore

async def main():
    slot = await AsyncSemaphore(sys.argv[1], redis=sys.argv[2]).acquire()
    print("holding", flush=True)
    {then}

asyncio.run(main())
"""


@pytest.fixture
async def semaphore(server: RedisServer, redis: Redis, name: str) -> AsyncSemaphore:
    """A semaphore of limit 2 with a lease of 2 s, as an operator would declare it."""
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=1))
    return AsyncSemaphore(name, redis=server.url)


async def until(condition) -> None:
    """Wait for a condition, within the time of a hung test."""
    async with asyncio.timeout(15):
        while not await condition():
            await asyncio.sleep(0.005)


def waiting(semaphore: AsyncSemaphore, n: int):
    async def condition() -> bool:
        return (await semaphore.statistics()).waiting == n

    return condition


def held(semaphore: AsyncSemaphore, n: int):
    async def condition() -> bool:
        return (await semaphore.statistics()).held == n

    return condition


def holder_process(semaphore: AsyncSemaphore, then: str) -> subprocess.Popen[str]:
    """Start a process that takes a slot and then does something; returns once it holds."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(then=then), semaphore.name, semaphore._url],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    return process


async def test_a_block_holds_a_slot_and_gives_it_back(semaphore):
    async with semaphore as slot:
        statistics = await semaphore.statistics()
        assert (statistics.limit, statistics.state, statistics.held, statistics.held_here) == (2, State.ACTIVE, 1, 1)
        assert 0 < slot.remaining() <= 2
        assert not slot.lost
    await until(held(semaphore, 0))
    assert slot.remaining() == 0


async def test_no_more_hold_than_the_limit_says(semaphore):
    running = most = 0

    async def work() -> None:
        nonlocal running, most
        async with semaphore:
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1

    await asyncio.gather(*(work() for _ in range(200)))
    assert most == 2


async def test_tasks_of_one_object_never_release_each_others_slot(semaphore):
    """redis-py#656: the token belongs to the block, not to the object."""
    inside, leave = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        async with semaphore:
            inside.set()
            await leave.wait()

    task = asyncio.create_task(first())
    await inside.wait()
    async with semaphore:
        pass
    await until(held(semaphore, 1))
    leave.set()
    await task


async def test_call_runs_functions_and_coroutine_functions_inside_a_slot(semaphore):
    async def held_now(extra: int) -> int:
        return (await semaphore.statistics()).held + extra

    assert await semaphore.call(held_now, extra=10) == 11
    assert await semaphore.call(max, 3, 4) == 4


async def test_a_timeout_leaves_the_queue_and_says_what_stood_in_the_way(semaphore):
    async with semaphore, semaphore:
        other = asyncio.create_task(semaphore.acquire())
        await until(waiting(semaphore, 1))
        with pytest.raises(AcquireTimeout, match=r"2nd of 2 in line, limit 2 held by .+ on ") as raised:
            await semaphore.acquire(timeout=0.05)
        assert isinstance(raised.value, TimeoutError)
        await until(waiting(semaphore, 1))
    await semaphore.release(await other)


async def test_try_acquire_takes_only_what_is_free(semaphore):
    first, second = await semaphore.try_acquire(), await semaphore.try_acquire()
    assert first is not None
    assert second is not None
    assert await semaphore.try_acquire() is None
    assert await semaphore.release(first)
    assert await semaphore.release(second)


async def test_a_second_release_says_that_it_was_none(semaphore):
    slot = await semaphore.acquire()
    assert await semaphore.release(slot)
    assert await semaphore.release(slot) is ReleaseOutcome.NOT_HELD
    assert (await semaphore.statistics()).totals.released == 1


@pytest.mark.parametrize("turns", range(12))
async def test_cancelling_an_acquire_at_any_moment_leaves_nothing_behind(semaphore, turns):
    """redis-py#3847: cancelled at every await; never held but unowned."""
    task = asyncio.create_task(semaphore.acquire())
    for _ in range(turns):
        await asyncio.sleep(0 if turns < 6 else 0.0003)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await semaphore.release(await task)
    await until(held(semaphore, 0))
    assert (await semaphore.statistics()).waiting == 0


async def test_cancelling_a_waiter_leaves_the_queue(semaphore):
    async with semaphore, semaphore:
        task = asyncio.create_task(semaphore.acquire())
        await until(waiting(semaphore, 1))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(waiting(semaphore, 0))


async def test_an_error_in_the_block_releases_and_passes_on(semaphore):
    with pytest.raises(ZeroDivisionError):
        async with semaphore:
            _ = 1 / 0
    await until(held(semaphore, 0))


async def test_a_hold_of_several_leases_keeps_its_slot(server, redis, name):
    """swarthy#24, prefect PR #21925: renewals go on however long the hold."""
    await declare(redis, name, Config(limit=1, lease_ms=1000, uid="uid", generation=1))
    semaphore = AsyncSemaphore(name, redis=server.url)
    async with semaphore as slot:
        await asyncio.sleep(2.5)
        assert not slot.lost
    assert (await semaphore.statistics()).totals.expired == 0


async def test_a_loop_that_computes_for_several_leases_keeps_its_slot(server, redis, name):
    """dask/distributed#4057, bullmq#1028: renewals do not depend on the user's event loop."""
    await declare(redis, name, Config(limit=1, lease_ms=1000, uid="uid", generation=1))
    semaphore = AsyncSemaphore(name, redis=server.url)
    async with semaphore as slot:
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            sum(range(1000))
        slot.check()
    assert (await semaphore.statistics()).totals.expired == 0


async def test_a_slot_taken_away_cancels_the_block_and_is_told(semaphore, redis):
    reached = False
    with pytest.raises(SlotLost, match="force-released"):
        async with semaphore as slot:
            await redis.zrem(Keys.of(semaphore.name).prefix + "holders", slot.token)
            await asyncio.sleep(30)
            reached = True
    assert not reached
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_cancelling_from_outside_stays_a_cancellation_when_the_slot_is_lost_too(semaphore, redis):
    inside = asyncio.Event()

    async def work() -> None:
        async with semaphore as slot:
            await redis.zrem(Keys.of(semaphore.name).prefix + "holders", slot.token)
            inside.set()
            try:
                await asyncio.sleep(30)
            finally:
                me.cancel()

    me = asyncio.create_task(work())
    await inside.wait()
    with pytest.raises(asyncio.CancelledError):
        await me


async def test_a_slot_is_lost_before_the_server_gives_it_away(name):
    """prefect#18839: the server is out of reach for longer than the lease."""
    with RedisServer(next(iter(SERVERS.values()))) as server:
        semaphore = AsyncSemaphore(name, redis=server.url, limit=1, lease=1)
        with pytest.raises(SlotLost, match="could not be renewed in time"):
            async with semaphore as slot:
                os.kill(server.pid, signal.SIGSTOP)
                try:
                    await asyncio.sleep(30)
                finally:
                    lost_at = time.time()
                    os.kill(server.pid, signal.SIGCONT)
        granted_at = slot.fence / 1e6
        assert lost_at < granted_at + 1 + 0.7  # renewed once at most, a third of the lease after the grant


async def test_a_killed_holder_is_replaced_after_its_lease(semaphore):
    """redisson#4462, prefect#17415: both holders SIGKILLed."""
    crashed = [holder_process(semaphore, "await asyncio.sleep(60)") for _ in range(2)]
    for process in crashed:
        process.kill()
        process.wait()
        process.stdout.close()
    async with asyncio.timeout(10), semaphore:
        assert (await semaphore.statistics()).totals.expired >= 1


async def test_a_process_that_ends_gives_its_slots_back(semaphore):
    process = holder_process(semaphore, "")
    assert process.wait(10) == 0
    process.stdout.close()
    statistics = await semaphore.statistics()
    assert (statistics.held, statistics.totals.released) == (0, 1)


async def test_a_forked_child_starts_afresh_and_leaves_its_parents_slots_alone(semaphore):
    slot = await semaphore.acquire()
    program = (
        "import asyncio, os, sys\n"
        "from distributed_semaphore import AsyncSemaphore\n"
        "semaphore = AsyncSemaphore(sys.argv[1], redis=sys.argv[2])\n"
        "async def once():\n"
        "    async with semaphore: return (await semaphore.statistics()).held\n"
        "assert asyncio.run(once()) == 2\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    assert asyncio.run(once()) == 2\n"
        "    sys.exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "assert asyncio.run(once()) == 2\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, semaphore.name, semaphore._url)
    assert await process.wait() == 0
    assert await semaphore.release(slot)


async def test_threads_and_loops_share_one_semaphore(semaphore):
    """redis-py#656, aredis#119: module-level semaphores are used from many event loops."""
    seen: list[int] = []

    async def work() -> None:
        async with semaphore:
            seen.append((await semaphore.statistics()).held_here)

    threads = [threading.Thread(target=asyncio.run, args=(work(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(lambda: [thread.join(10) for thread in threads])
    assert len(seen) == 4
    assert max(seen) <= 2


async def test_three_thousand_waiters_of_a_process_use_two_connections(name):
    """go-redis#1798, redis-py#516: waiters cost no connection each; release and renewals pass."""
    with RedisServer(next(iter(SERVERS.values()))) as server:
        semaphore = AsyncSemaphore(name, redis=server.url, limit=1, lease=2)
        async with semaphore as slot:
            waiters = [asyncio.create_task(semaphore.acquire()) for _ in range(3000)]
            await until(waiting(semaphore, 3000))
            first = slot.expiry_ms
            while slot.expiry_ms == first:
                await asyncio.sleep(0.01)
            clients = subprocess.run(
                [sys.executable, "-c", f"import redis; print(len(redis.Redis(port={server.port}).client_list()))"],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert int(clients.stdout) == 2 + 1  # the last one asks
        for task in waiters:
            await semaphore.release(await task)


async def test_the_local_cap_keeps_a_process_from_filling_the_queue(server, redis, name):
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=1, per_process_limit=5))
    semaphore = AsyncSemaphore(name, redis=server.url)
    slots = [await semaphore.acquire() for _ in range(2)]
    tasks = [asyncio.create_task(semaphore.acquire()) for _ in range(20)]
    await until(waiting(semaphore, 3))
    assert (await semaphore.statistics()).waiting_here == 20
    tasks.pop().cancel()
    for slot in slots:
        await semaphore.release(slot)
    for task in tasks:
        await semaphore.release(await task)
    statistics = await semaphore.statistics()
    assert (statistics.held, statistics.waiting, statistics.waiting_here) == (0, 0, 0)


async def test_an_unknown_semaphore_lets_nobody_in_and_names_resource_and_redis(server):
    url = server.url.replace("//", "//someone:secret@")
    with pytest.raises(Unavailable, match="refuses this client") as refused:
        await AsyncSemaphore("payments/none", redis=url).acquire()
    assert "secret" not in str(refused.value)
    with pytest.raises(NotConfigured, match=rf"payments/none .* redis://127.0.0.1:{server.port}/0"):
        await AsyncSemaphore("payments/none", redis=server.url).acquire()


@pytest.mark.parametrize(
    "url",
    ["redis:user:secret@host", "redis://user:secret@:x/0", "redis://user:sec/secret@host:port/0", "http://u:secret@h"],
)
def test_a_password_is_never_shown(url):
    with pytest.raises(InvalidArgument) as raised:
        AsyncSemaphore("x", redis=url)
    assert "sec" not in str(raised.value)


async def test_a_config_that_vanished_is_waited_for(semaphore, redis):
    async with semaphore:
        pass
    await redis.delete(Keys.of(semaphore.name).config)
    task = asyncio.create_task(semaphore.acquire())
    await asyncio.sleep(0.2)
    assert not task.done()
    await declare(redis, semaphore.name, Config(limit=2, lease_ms=2000, uid="uid", generation=1))
    await semaphore.release(await task)


async def test_deleting_the_semaphore_closes_it_for_waiters_while_holders_finish(semaphore, redis):
    first, second = await semaphore.acquire(), await semaphore.acquire()
    tasks = [asyncio.create_task(semaphore.acquire()) for _ in range(3)]
    await until(waiting(semaphore, 3))
    await forget(redis, semaphore.name, "uid")
    for task in tasks:
        with pytest.raises(Closed):
            await task
    assert await semaphore.release(first)
    assert await semaphore.release(second)
    assert await redis.keys(Keys.of(semaphore.name).prefix + "*") == []


async def test_refusals_are_typed(semaphore, redis, name):
    with pytest.raises(WeightTooLarge, match="weight 3 exceeds the limit 2"):
        await semaphore.acquire(weight=3)
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=2, max_waiting=1))
    async with semaphore, semaphore:
        task = asyncio.create_task(semaphore.acquire())
        await until(waiting(semaphore, 1))
        with pytest.raises(QueueFull):
            await semaphore.acquire()
        await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=3, state=State.CLOSED))
        with pytest.raises(Closed):
            await task


async def test_a_limit_below_a_waiting_weight_refuses_that_waiter(semaphore, redis, name):
    """airflow PR #20178: the limit is lowered below what somebody waits for."""
    async with semaphore:
        task = asyncio.create_task(semaphore.acquire(weight=2))
        await until(waiting(semaphore, 1))
        await declare(redis, name, Config(limit=1, lease_ms=2000, uid="uid", generation=2))
        with pytest.raises(WeightTooLarge):
            await task


async def test_the_operators_config_wins_over_the_clients(server, redis, name):
    await declare(redis, name, Config(limit=7, lease_ms=2000, uid="uid", generation=1))
    semaphore = AsyncSemaphore(name, redis=server.url, limit=3, lease=10)
    async with semaphore:
        assert (await semaphore.statistics()).limit == 7


async def test_waiters_and_holders_outlive_a_restart_of_the_server(name):
    """redisson#6026: the server restarts empty; a client that declared the semaphore goes on by itself."""
    server = RedisServer(next(iter(SERVERS.values()))).start()
    try:
        semaphore = AsyncSemaphore(name, redis=server.url, limit=1, lease=1)
        slot = await semaphore.acquire()
        task = asyncio.create_task(semaphore.acquire())
        await until(waiting(semaphore, 1))
        server.stop()
        server.start()
        await until(held(semaphore, 1))
        assert (await semaphore.statistics()).totals.reclaimed == 1
        await until(waiting(semaphore, 1))
        assert not task.done()
        assert await semaphore.release(slot)
        second = await asyncio.wait_for(task, 10)
        assert second.fence > slot.fence
        await semaphore.release(second)
    finally:
        server.stop()


async def test_a_waiter_beyond_the_semaphores_own_bound_is_sent_away(semaphore, redis, name):
    """The resource's maxWait counts, whatever timeouts the callers chose."""
    await declare(redis, name, Config(limit=2, lease_ms=2000, uid="uid", generation=2, max_wait_ms=1000))
    async with semaphore, semaphore:
        with pytest.raises(AcquireTimeout, match="within 1s, its maxWait"):
            await semaphore.acquire()


async def test_a_revoked_slot_is_told_to_its_holder_at_once(semaphore, redis, name):
    with pytest.raises(SlotLost, match="force-released"):
        async with semaphore as slot:
            revoked = asyncio.create_task(revoke(redis, name, [slot.token]))
            await asyncio.sleep(30)
    assert await revoked == 1


async def test_slots_are_found_by_what_is_known_of_their_process(semaphore, redis, name):
    async with semaphore as slot:
        assert await find(redis, name, "pid", str(os.getpid())) == [slot.token]
        assert await find(redis, name, "pod", "none") == []


async def test_a_killed_subscription_comes_back_and_nobody_is_forgotten(semaphore, redis):
    """redisson#6026: the connection that hears of grants is cut."""
    first, second = await semaphore.acquire(), await semaphore.acquire()
    tasks = [asyncio.create_task(semaphore.acquire()) for _ in range(20)]
    await until(waiting(semaphore, 20))
    await redis.client_kill_filter(_type="pubsub")
    await semaphore.release(first)
    await semaphore.release(second)
    async with asyncio.timeout(10):
        for task in tasks:
            await semaphore.release(await task)


async def test_without_a_server_a_timeout_says_so(name):
    semaphore = AsyncSemaphore(name, redis="redis://127.0.0.1:1/0")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1/0 cannot be used"):
        await semaphore.acquire(timeout=0.3)
    with pytest.raises(Unavailable):
        await semaphore.try_acquire()
    with pytest.raises(Unavailable):
        await semaphore.statistics()


async def test_snapshots_name_holders_by_their_identity(semaphore, redis, monkeypatch):
    async with semaphore:
        [snapshot] = await inspect(redis, [semaphore.name])
        assert snapshot.holders[0].identity["pid"] == str(os.getpid())
        assert snapshot.holders[0].identity["host"]


@pytest.mark.parametrize("lease", [0, -1, 0.0004, float("inf"), float("nan"), "5 minutes", 3601, True])
def test_a_lease_out_of_range_is_refused_where_it_is_written(lease):
    """redis-py PR #4282, node-redlock#120."""
    with pytest.raises(InvalidArgument, match="lease is a number of seconds from 1 to 3600"):
        AsyncSemaphore("x", redis="redis://127.0.0.1/0", limit=1, lease=lease)


@pytest.mark.parametrize(
    "arguments",
    [
        {"limit": -1},
        {"limit": 1.5},
        {"limit": 100_001},
        {"lease": 10},
        {"per_process_limit": 0},
        {"redis": "http://127.0.0.1"},
        {"redis": "redis://"},
        {"redis": "redis://127.0.0.1:port/0"},
        {"redis": ""},
    ],
    ids=str,
)
def test_bad_arguments_are_refused_at_construction(arguments):
    with pytest.raises(InvalidArgument):
        AsyncSemaphore("x", **{"redis": "redis://127.0.0.1/0", **arguments})


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 508, "\ud800"], ids=repr)
def test_names_that_cannot_be_are_refused(name):
    with pytest.raises(InvalidArgument, match="name"):
        AsyncSemaphore(name, redis="redis://127.0.0.1/0")


@pytest.mark.parametrize("name", ["%d{}", "a b", "größe/🚦", "{}", "x" * 253, "a}b{c", "*?[x]"])
async def test_unusual_names_work(server, redis, name):
    """redis-semaphore `%`: names with format characters, braces, spaces, emoji."""
    semaphore = AsyncSemaphore(name, redis=server.url, limit=1, lease=5)
    async with semaphore:
        assert (await semaphore.statistics()).held == 1
    assert [key.count("{") for key in await redis.keys(Keys.of(name).prefix.replace("*", r"\*") + "config")] == [1]


@pytest.mark.parametrize(
    "arguments",
    [{"timeout": -1}, {"timeout": float("nan")}, {"timeout": "1"}, {"weight": 0}, {"weight": 1.5}, {"priority": 8001}],
    ids=str,
)
async def test_bad_requests_are_refused_at_the_call(semaphore, arguments):
    with pytest.raises(InvalidArgument):
        await semaphore.acquire(**arguments)


async def test_semaphores_that_are_not_used_any_more_are_forgotten_by_the_process(server, redis, name, monkeypatch):
    """sidekiq#3323: a process may use thousands of semaphores, one after another."""
    monkeypatch.setattr(_session, "IDLE", -1.0)
    used = [AsyncSemaphore(f"{name}-{n}", redis=server.url, limit=1, lease=1) for n in range(50)]
    for semaphore in used:
        async with semaphore:
            pass
    courier, session = used[0]._connect()

    async def forgotten() -> bool:
        courier.submit(courier._retire_idle)
        return session.retired and not [channel for channel in courier._home._ear.sessions if f"{name}-" in channel]

    await until(forgotten)
    await until(lambda: no_listener(redis, session.channel))
    async with used[0]:
        assert (await used[0].statistics()).held_here == 1


async def no_listener(redis: Redis, channel: str) -> bool:
    return (await redis.pubsub_numsub(channel))[0][1] == 0


async def test_renewals_go_on_while_the_subscription_is_refused(server, redis, name):
    """Holders must not depend on the connection that only hears of grants."""
    await declare(redis, name, Config(limit=1, lease_ms=1000, uid="uid", generation=1))
    semaphore = AsyncSemaphore(name, redis=server.url)
    async with semaphore as slot:
        await redis.execute_command("ACL", "SETUSER", "default", "-subscribe")
        try:
            await redis.client_kill_filter(_type="pubsub")
            await asyncio.sleep(2)
            slot.check()
        finally:
            await redis.execute_command("ACL", "SETUSER", "default", "+subscribe")


async def test_a_lost_wake_up_is_healed_whatever_the_priorities(semaphore, redis, name):
    """The renewal names those that are granted first, not those that asked first."""
    first, second = await semaphore.acquire(), await semaphore.acquire()
    plain = [asyncio.create_task(semaphore.acquire()) for _ in range(20)]
    await until(waiting(semaphore, 20))
    urgent = asyncio.create_task(semaphore.acquire(priority=7))
    await until(waiting(semaphore, 21))
    keys = Keys.of(name)
    [(token, score)] = await redis.zrange(keys.prefix + "queue", 0, 0, withscores=True)
    assert score < 0
    # As if the grant had been written and its message lost.
    await redis.zrem(keys.prefix + "queue", token)
    await redis.zadd(keys.prefix + "holders", {token: 1000 * (await redis.time())[0] + 3000})
    await redis.zadd(keys.prefix + "grants", {token: 2**51})
    slot = await asyncio.wait_for(urgent, 5)
    for held_slot in (slot, first, second):
        await semaphore.release(held_slot)
    for task in plain:
        await semaphore.release(await task)


async def test_a_release_is_answered_although_word_of_its_grant_comes_late(semaphore, redis):
    """As when a renewal was under way while the slot was granted and given back; after a fail-over it happens."""
    slot = await semaphore.acquire()
    courier, session = semaphore._connect()
    now = 1000 * (await redis.time())[0]
    answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def release_and_hear_again() -> None:
        session.release(slot, lambda code: courier.deliver(answered.get_loop(), lambda: answered.set_result(code)))
        session.on_message(f"g {now} {now + 2000} {slot.token} {slot.fence}")

    courier.submit(release_and_hear_again)
    assert await asyncio.wait_for(answered, 5) == 1
    assert (await semaphore.statistics()).held == 0
