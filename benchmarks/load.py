"""The load: processes of asyncio workers that take a slot, hold it for a while and give it back, again and again."""

from __future__ import annotations

import asyncio
import random
import time
from bisect import bisect_right, insort
from dataclasses import dataclass
from statistics import quantiles
from typing import TYPE_CHECKING, NamedTuple

import uvloop
from benchmarks.outcome import Column
from benchmarks.server import usage
from benchmarks.workers import hear, processes, start_signal, start_together

from redis import Redis

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection

    from benchmarks.designs import Design, Subject
    from benchmarks.server import Usage


WAIT_EDGES = [1e-4 * (5.0 / 1e-4) ** (step / 94) for step in range(95)]
"""Seconds, 0.1 ms to 5 s, evenly spread by their logarithm."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a design. The defaults are the article's. Times in seconds."""

    processes: int = 3
    workers: int = 10
    jobs: int = 600
    hold: float = 0.020
    limit: int = 5
    lease: float = 5.0
    spread: float = 0.0
    """How uneven holds are: 0.5 makes them half as long to one and a half times as long."""
    uvloop: bool = False
    """Whether the workers of all designs run on uvloop, not on the event loop of asyncio."""

    def shares(self) -> list[list[int]]:
        """Give the number of jobs of each worker of each process: all the same, but for a remainder."""
        share, rest = divmod(self.jobs, self.processes * self.workers)
        of_worker = [share + (worker < rest) for worker in range(self.processes * self.workers)]
        return [of_worker[start : start + self.workers] for start in range(0, len(of_worker), self.workers)]

    @property
    def nominal_floor(self) -> float:
        """The run time below which no semaphore of this limit can come."""
        return self.jobs * self.hold / self.limit


class Job(NamedTuple):
    """Three moments of a job by CLOCK_MONOTONIC, which all processes of a machine share."""

    asked: float
    got: float
    done: float
    """When the work ended, just before the slot was given back."""


@dataclass(frozen=True, slots=True)
class LoadRun:
    """The figures of one design's run."""

    run: float
    """Seconds from the start to the end of the last job."""
    floor: float
    """The holds as they were measured, divided by the limit: what the run would take if no slot ever idled."""
    waits: list[float]
    """Seconds, one for each job, in ascending order."""
    max_holders: int
    most_overtaken: int
    """How many requests made at least one hold later were served before the unluckiest one."""
    commands_per_job: float
    redis_cpu_per_job: float
    worker_cpu_per_job: float
    """CPU seconds of the worker processes, all threads, user and system."""

    def percentile(self, percent: int) -> float:
        """Give a percentile of all waits, in seconds."""
        return quantiles(self.waits, n=100, method="inclusive")[percent - 1]


def run_load(subject: Subject, load: Load) -> LoadRun:
    """Run the load once. The processes have connected and done a round of jobs each before the clock starts."""
    with Redis.from_url(subject.url, decode_responses=True) as redis:
        arguments = [(subject, load, shares) for shares in load.shares()]
        with processes(_work, arguments) as connections:
            start = start_together(connections)
            before = usage(redis)
            reports = [hear(connection) for connection in connections]
            after = usage(redis)
    jobs = [Job(*job) for _, own in reports for job in own]
    return summarise(load, jobs, start=start, before=before, after=after, worker_cpu=sum(cpu for cpu, _ in reports))


def summarise(
    load: Load, jobs: Sequence[Job], *, start: float, before: Usage, after: Usage, worker_cpu: float
) -> LoadRun:
    """Make the figures of a run from its jobs and from what the server and the workers say of themselves."""
    return LoadRun(
        run=max(job.done for job in jobs) - start,
        floor=sum(job.done - job.got for job in jobs) / load.limit,
        waits=sorted(job.got - job.asked for job in jobs),
        max_holders=max_holders(jobs),
        most_overtaken=most_overtaken(jobs, load.hold),
        commands_per_job=(after.commands - before.commands) / len(jobs),
        redis_cpu_per_job=(after.cpu - before.cpu) / len(jobs),
        worker_cpu_per_job=worker_cpu / len(jobs),
    )


COLUMNS = {
    "run_s": Column("run s", 2),
    "run_over_floor": Column("÷ floor", 3),
    "p50_ms": Column("p50 ms"),
    "p99_ms": Column("p99 ms"),
    "max_ms": Column("max ms"),
    "most_overtaken": Column("overtaken"),
    "max_holders": Column("most held"),
    "commands_per_job": Column("calls a job", 1),
    "redis_cpu_us_per_job": Column("Redis CPU µs"),
    "worker_cpu_us_per_job": Column("worker CPU µs"),
}
"""The figures that tables show."""


def figures(run: LoadRun) -> dict[str, float]:
    """Give a run's figures under the names of the results files."""
    return {
        "run_s": round(run.run, 3),
        "floor_s": round(run.floor, 3),
        "run_over_floor": round(run.run / run.floor, 3),
        "p50_ms": round(run.percentile(50) * 1e3, 1),
        "p99_ms": round(run.percentile(99) * 1e3, 1),
        "max_ms": round(run.waits[-1] * 1e3, 1),
        "most_overtaken": run.most_overtaken,
        "max_holders": run.max_holders,
        "commands_per_job": round(run.commands_per_job, 1),
        "redis_cpu_us_per_job": round(run.redis_cpu_per_job * 1e6, 1),
        "worker_cpu_us_per_job": round(run.worker_cpu_per_job * 1e6),
    }


def waits_histogram(run: LoadRun) -> list[int]:
    """Count the waits between each two of `WAIT_EDGES`; shorter and longer ones are in the first and the last."""
    counts = [0] * (len(WAIT_EDGES) - 1)
    for wait in run.waits:
        counts[min(max(bisect_right(WAIT_EDGES, wait) - 1, 0), len(counts) - 1)] += 1
    return counts


def max_holders(jobs: Sequence[Job]) -> int:
    """Count the most slots held at once, by anybody. A slot given back in the instant of a grant is not counted."""
    changes = sorted([(job.got, 1) for job in jobs] + [(job.done, -1) for job in jobs])
    held = most = 0
    for _, change in changes:
        held += change
        most = max(most, held)
    return most


def most_overtaken(jobs: Sequence[Job], margin: float) -> int:
    """Count, for the job that was worst off, how many asked after it and got a slot before it.

    Requests less than the margin (seconds) apart have no order that anybody could know: they were under way together.
    """
    most = 0
    served: list[float] = []
    """When those were asked for that have been served so far, in ascending order."""
    for job in sorted(jobs, key=lambda job: job.got):
        most = max(most, len(served) - bisect_right(served, job.asked + margin))
        insort(served, job.asked)
    return most


def _work(connection: Connection, subject: Subject, load: Load, shares: list[int]) -> None:
    """Do a process's share of the jobs."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if load.uvloop else None) as runner:
        runner.run(_work_async(connection, subject, load, shares))


async def _work_async(connection: Connection, subject: Subject, load: Load, shares: list[int]) -> None:
    design = await subject.open(load.limit, load.lease)
    await asyncio.gather(*(_worker(design, 1, 0.0, 0.0) for _ in shares))
    await start_signal(connection)
    cpu = time.process_time()
    jobs = await asyncio.gather(*(_worker(design, share, load.hold, load.spread) for share in shares))
    cpu = time.process_time() - cpu
    connection.send((cpu, [tuple(job) for own in jobs for job in own]))
    await design.close()


async def _worker(design: Design, jobs: int, hold: float, spread: float) -> list[Job]:
    log = []
    for _ in range(jobs):
        asked = time.monotonic()
        token = await design.acquire()
        got = time.monotonic()
        await asyncio.sleep(hold * random.uniform(1 - spread, 1 + spread))
        done = time.monotonic()
        await design.release(token)
        log.append(Job(asked, got, done))
    return log
