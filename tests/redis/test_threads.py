"""The twin for threads on a real server."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

import redis as sync_redis
from distributed_semaphore import (
    AcquireTimeout,
    AsyncSemaphore,
    InvalidArgument,
    ReleaseOutcome,
    Semaphore,
    SlotLost,
    Unavailable,
)
from distributed_semaphore.protocol import Keys

if TYPE_CHECKING:
    from distributed_semaphore.testing import RedisServer


@pytest.fixture
def semaphore(server: RedisServer, name: str) -> Semaphore:
    return Semaphore(name, redis=server.url, limit=2, lease=2)


def run(*targets) -> list[threading.Thread]:
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    return threads


def test_no_more_hold_than_the_limit_says(semaphore):
    lock, running, most = threading.Lock(), 0, 0

    def work() -> None:
        nonlocal running, most
        for _ in range(20):
            with semaphore:
                with lock:
                    running += 1
                    most = max(most, running)
                time.sleep(0.0005)
                with lock:
                    running -= 1

    for thread in run(*[work] * 10):
        thread.join(30)
    assert most == 2
    assert semaphore.statistics().totals.granted == 200


def test_a_timeout_says_what_stood_in_the_way(semaphore):
    with semaphore, semaphore:
        with pytest.raises(AcquireTimeout, match="1st of 1 in line, limit 2 held by"):
            semaphore.acquire(timeout=0.05)
        assert semaphore.try_acquire() is None
        assert semaphore.statistics().waiting == 0


def test_a_slot_may_be_released_by_another_thread(semaphore):
    """redis-py#656, aredis#119: the token is the slot's, not the thread's."""
    slot = semaphore.acquire()
    answers: list[ReleaseOutcome] = []
    [thread] = run(lambda: answers.append(semaphore.release(slot)))
    thread.join(10)
    assert answers == [ReleaseOutcome.RELEASED]
    assert semaphore.release(slot) is ReleaseOutcome.NOT_HELD


def test_threads_of_one_object_never_release_each_others_slot(semaphore):
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with semaphore:
            inside.set()
            leave.wait(10)

    [thread] = run(first)
    assert inside.wait(10)
    with semaphore:
        pass
    assert semaphore.statistics().held_here == 1
    leave.set()
    thread.join(10)


def test_call_and_decorator_hold_a_slot(semaphore):
    assert semaphore.call(lambda: semaphore.statistics().held) == 1

    @semaphore.limit
    def held(extra: int) -> int:
        """Look."""
        return semaphore.statistics().held + extra

    assert held(10) == 11
    assert held.__doc__ == "Look."


async def test_the_decorator_for_coroutines_holds_a_slot(server, name):
    semaphore = AsyncSemaphore(name, redis=server.url, limit=2, lease=2)

    @semaphore.limit
    async def held() -> int:
        return (await semaphore.statistics()).held

    assert await held() == 1


def test_a_lost_slot_is_told_by_callback_check_and_the_end_of_the_block(semaphore, server):
    told = threading.Event()
    connection = sync_redis.Redis.from_url(server.url)
    with connection, pytest.raises(SlotLost, match="force-released"), semaphore.slot(on_lost=told.set) as slot:
        slot.check()
        connection.zrem(Keys.of(semaphore.name).prefix + "holders", slot.token)
        assert told.wait(10)
        with pytest.raises(SlotLost):
            slot.check()
        assert slot.remaining() == 0


def test_an_error_in_the_block_is_not_hidden_by_the_loss(semaphore, server):
    told = threading.Event()
    connection = sync_redis.Redis.from_url(server.url)
    with connection, pytest.raises(ZeroDivisionError), semaphore.slot(on_lost=told.set) as slot:
        connection.zrem(Keys.of(semaphore.name).prefix + "holders", slot.token)
        assert told.wait(10)
        _ = 1 / 0


def test_an_interrupted_wait_leaves_the_queue(semaphore):
    program = (
        "import signal, sys\n"
        "from distributed_semaphore import Semaphore\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits that it is ignored\n"
        "semaphore = Semaphore(sys.argv[1], redis=sys.argv[2])\n"
        "print('ready', flush=True)\n"
        "try:\n"
        "    semaphore.acquire()\n"
        "except KeyboardInterrupt:\n"
        "    print(semaphore.statistics().waiting, flush=True)\n"
    )
    with semaphore, semaphore:
        process = subprocess.Popen(
            [sys.executable, "-c", program, semaphore.name, semaphore._url], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        while semaphore.statistics().waiting == 0:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=10)
    assert (said, process.returncode) == ("0\n", 0)


def test_both_twins_share_one_queue_and_one_process(server, semaphore):
    other = AsyncSemaphore(semaphore.name, redis=server.url)
    with semaphore:
        assert semaphore.statistics().held_here == 1
        assert repr(other) == f"<AsyncSemaphore {semaphore.name} at {server.url}>"


def test_a_forked_worker_starts_afresh(semaphore):
    """Celery's prefork, gunicorn, multiprocessing: the parent has used the semaphore before it forks."""
    program = (
        "import os, sys\n"
        "from distributed_semaphore import Semaphore\n"
        "semaphore = Semaphore(sys.argv[1], redis=sys.argv[2])\n"
        "slot = semaphore.acquire()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    with semaphore:\n"
        "        os._exit(0 if semaphore.statistics().held == 2 else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "assert semaphore.release(slot)\n"
    )
    arguments = [sys.executable, "-c", program, semaphore.name, semaphore._url]
    with semaphore:
        pass
    assert subprocess.run(arguments, check=False, timeout=30).returncode == 0


def test_without_a_server_nobody_waits_for_ever(name):
    semaphore = Semaphore(name, redis="redis://127.0.0.1:1/0")
    with pytest.raises(Unavailable):
        semaphore.acquire(timeout=0.3)
    with pytest.raises(Unavailable):
        semaphore.try_acquire()


def test_bad_requests_are_refused_at_the_call(semaphore):
    with pytest.raises(InvalidArgument, match="timeout is a number of seconds"):
        semaphore.slot(timeout=-1)
