"""Scenarios of public bug reports: clients in the wild, and the programs they live in."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.redis.scenarios.actors import shows

from distributed_semaphore import AsyncSemaphore, Semaphore

if TYPE_CHECKING:
    from distributed_semaphore.testing import RedisServer

BEGIN = """
import asyncio, os, signal, sys, threading
from distributed_semaphore import AsyncSemaphore, Semaphore
semaphore = Semaphore(sys.argv[1], redis=sys.argv[2], limit=2, lease=2)
"""


def program(semaphore: Semaphore | AsyncSemaphore, text: str, *options: str, before: str = "") -> subprocess.Popen[str]:
    """Start a Python program that has a semaphore."""
    words = [sys.executable, *options, "-c", before + BEGIN + text, semaphore.name, semaphore._url]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    """Wait for its end and give what it printed."""
    try:
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == code, err
    return out


@pytest.fixture
def semaphore(server: RedisServer, name: str) -> AsyncSemaphore:
    return AsyncSemaphore(name, redis=server.url, limit=2, lease=2)


@pytest.mark.parametrize("turns", range(1, 8))
async def test_cancelling_a_release_at_any_moment_gives_the_slot_back(semaphore, turns):
    """redis-py#3847, PR #4258; self-limiters: the release is on its way whoever waits for it."""
    task = asyncio.create_task(semaphore.release(await semaphore.acquire()))
    for _ in range(turns):
        await asyncio.sleep(0 if turns < 4 else 0.0003)
    task.cancel()
    await asyncio.wait([task])
    await shows(semaphore, held=0, waiting=0)


async def test_a_block_that_times_out_inside_gives_its_slot_back(semaphore):
    """blnk PR #355: the request's own time is up, the release is sent all the same."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), semaphore:
            await asyncio.sleep(30)
    await shows(semaphore, held=0)
    assert (await semaphore.statistics()).totals.released == 1


async def test_a_release_that_fails_is_repeated_until_it_gets_through(name, proxy):
    """portalocker#140: Redis cannot be reached when the block ends; the object goes on and the slot comes back."""
    semaphore = AsyncSemaphore(name, redis=proxy.url, limit=1, lease=60)
    async with semaphore:
        proxy.refusing = True
        proxy.cut()
    await asyncio.sleep(0.2)
    proxy.refusing = False
    async with semaphore.slot(timeout=10):  # long before the lease ends
        pass


def test_a_thread_that_cannot_start_leaves_the_semaphore_usable(server, name):
    """portalocker#140: the process is at its limit of threads when the semaphore is used first."""
    text = """
start, failing = threading.Thread.start, True
def maybe(self):
    if failing:
        raise RuntimeError("can't start new thread")
    start(self)
threading.Thread.start = maybe
try:
    semaphore.acquire(timeout=5)
except RuntimeError as error:
    print(error)
failing = False
with semaphore.slot(timeout=5):
    print(semaphore.statistics().held)
"""
    assert ended(program(Semaphore(name, redis=server.url), text)) == "can't start new thread\n1\n"


def test_without_assertions_everything_works_the_same(server, name):
    """portalocker#140: python -O takes assert statements away."""
    text = """
assert False
async def main():
    other = AsyncSemaphore(sys.argv[1], redis=sys.argv[2], limit=2, lease=2)
    async with other, other:
        print(await other.try_acquire(), (await other.statistics()).held)
asyncio.run(main())
with semaphore as slot:
    print(semaphore.statistics().held_here)
"""
    assert ended(program(Semaphore(name, redis=server.url), text, "-O")) == "None 2\n1\n"


def test_prefork_workers_share_the_limit_after_the_parent_has_used_the_semaphore(server, name):
    """Celery's prefork, gunicorn --preload and multiprocessing fork: the parent's threads and sockets stay its own."""
    text = """
import multiprocessing, time
def work(n):
    with semaphore.slot(timeout=20):
        held = semaphore.statistics().held
        time.sleep(0.01)
        return held
if __name__ == "__main__":
    with semaphore:
        pass
    with multiprocessing.get_context("fork").Pool(3) as pool:
        held = pool.map(work, range(30), chunksize=1)
        assert 1 <= max(held) <= 2, held
        pool.close()
        pool.join()
    print(semaphore.statistics().totals.granted, semaphore.statistics().held)
"""
    assert ended(program(Semaphore(name, redis=server.url), text)) == "31 0\n"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_of_multiprocessing_gives_back_what_it_holds_at_its_end(server, name, method, tmp_path):
    """It ends by os._exit, without atexit; a release that is on its way must not end with it."""
    text = f"""
import multiprocessing
def work():
    semaphore.acquire()
    with semaphore:
        pass
if __name__ == "__main__":
    semaphore.statistics()
    for _ in range(2):
        process = multiprocessing.get_context({method!r}).Process(target=work)
        process.start()
        process.join()
    found = semaphore.statistics()
    print(process.exitcode, found.held, found.totals.released, found.totals.expired)
"""
    file = tmp_path / "program.py"  # spawn imports it anew
    file.write_text(BEGIN + text)
    semaphore = Semaphore(name, redis=server.url)
    words = [sys.executable, str(file), semaphore.name, semaphore._url]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert ended(process) == "0 0 4 0\n"


@pytest.mark.parametrize("way", ["sys.exit(3)", "raise SystemExit(3)", "os.kill(os.getpid(), signal.SIGTERM)"])
def test_an_end_with_a_slot_held_gives_it_back(server, name, way):
    """Interpreter exit, and a SIGTERM handler that raises SystemExit as those of gunicorn and Celery do."""
    text = f"""
import time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
slot = semaphore.acquire()
{way}
time.sleep(30)
"""
    semaphore = Semaphore(name, redis=server.url)
    ended(program(semaphore, text), code=3)
    statistics = semaphore.statistics()
    assert (statistics.held, statistics.totals.released, statistics.totals.expired) == (0, 1, 0)


def test_a_signal_handler_may_use_the_semaphore_that_it_interrupts(server, name):
    """A handler runs between any two instructions of the main thread, inside acquire as well."""
    text = """
import threading, time
seen = []
def handler(*_):
    seen.append(semaphore.statistics().held)
signal.signal(signal.SIGUSR1, handler)
done = threading.Event()
def pester():
    while not done.is_set():
        before = len(seen)
        os.kill(os.getpid(), signal.SIGUSR1)
        while len(seen) == before and not done.is_set():
            time.sleep(0.001)
threading.Thread(target=pester).start()
for _ in range(200):
    with semaphore.slot(timeout=10):
        pass
done.set()
print(bool(seen), max(seen) <= 1)
"""
    process = program(Semaphore(name, redis=server.url), text)
    assert ended(process) == "True True\n"


def test_several_loops_and_uvloop_share_one_semaphore(server, name):
    """Module-level semaphores are used from one event loop after another, of asyncio and of uvloop."""
    text = """
import uvloop
shared = AsyncSemaphore(sys.argv[1], redis=sys.argv[2], limit=2, lease=2)
async def main():
    async def one():
        async with shared:
            await asyncio.sleep(0.001)
    await asyncio.gather(*(one() for _ in range(20)))
asyncio.run(main())
asyncio.run(main())
uvloop.run(main())
print(semaphore.statistics().totals.granted)
"""
    assert ended(program(Semaphore(name, redis=server.url), text)) == "60\n"


def test_gevent_works_as_long_as_it_leaves_threads_alone(server, name):
    """gevent's monkey-patching without threads: renewals go on, greenlets take turns."""
    pytest.importorskip("gevent")
    text = """
import gevent
def work():
    with semaphore.slot(timeout=10):
        gevent.sleep(0.001)
gevent.joinall([gevent.spawn(work) for _ in range(2)], raise_error=True)
print(semaphore.statistics().totals.granted)
"""
    before = "from gevent import monkey; monkey.patch_all(thread=False)\n"
    assert ended(program(Semaphore(name, redis=server.url), text, before=before)) == "2\n"


def test_gevent_in_place_of_threads_is_refused_where_the_semaphore_is_made(server, name):
    """With threads replaced by greenlets a busy greenlet would starve every renewal; late patching is found, too."""
    pytest.importorskip("gevent")
    text = """
from gevent import monkey
from distributed_semaphore import SemaphoreError
monkey.patch_all()
for use in (semaphore.acquire, lambda: Semaphore("x", redis=sys.argv[2]), lambda: AsyncSemaphore.from_resource("x")):
    try:
        use()
    except SemaphoreError as error:
        print(error)
"""
    process = program(
        Semaphore(name, redis=server.url), text, before="import warnings; warnings.simplefilter('ignore')"
    )
    assert ended(process).count("gevent.monkey.patch_all(thread=False)") == 3


def test_a_program_interrupted_in_its_block_gives_the_slot_back(server, name):
    """A signal that ends the block (Ctrl-C) releases at once, not after a lease."""
    text = """
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with semaphore:
        print("holding", flush=True)
        signal.pause()
except KeyboardInterrupt:
    pass
"""
    semaphore = Semaphore(name, redis=server.url)
    process = program(semaphore, text)
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    process.send_signal(signal.SIGINT)
    ended(process)
    assert semaphore.statistics().totals.released == 1
