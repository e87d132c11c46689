"""The benchmarks' two harnesses, run small: what they measure is there, and ours keeps the limit under both."""

import pytest
from benchmarks import peers
from benchmarks.designs import Subject
from benchmarks.load import Load, run_load
from benchmarks.peers.install import PEERS, command
from benchmarks.server import Bench

from distributed_semaphore.testing import RedisServer
from redis import Redis

SMALL = Load(processes=2, workers=3, jobs=18, hold=0.005, limit=2)


@pytest.fixture
def bench():
    with RedisServer() as server, Redis.from_url(server.url, decode_responses=True) as redis:
        yield Bench(server.url, redis, say=lambda _: None)


def test_the_load_measures_every_job_of_ours(bench):
    run = run_load(Subject("ours", bench.url, "bench/small"), SMALL)
    assert len(run.waits) == SMALL.jobs
    assert 1 <= run.max_holders <= SMALL.limit
    assert run.run > run.floor >= SMALL.nominal_floor
    assert run.commands_per_job > 1


def test_peers_measure_every_job_of_ours_and_its_recovery(bench, monkeypatch):
    monkeypatch.setattr(peers, "LOAD", SMALL)
    start = command(PEERS[-1], bench.say)
    run = peers._run(bench, *start)
    assert len(run.waits) == SMALL.jobs
    assert 1 <= run.max_holders <= SMALL.limit
    recovery = peers._crash(bench, *start)
    assert recovery is not None
    assert recovery > 0
