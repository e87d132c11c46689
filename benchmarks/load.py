"""The load: processes of asyncio workers that take a slot, hold it for a while and give it back, again and again."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import quantiles
from typing import TYPE_CHECKING, Any, NamedTuple

import uvloop

from redis import Redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    from benchmarks.designs import Design, Subject

START_DELAY = 0.2
"""Seconds between the word to start and the start, so that all processes have heard it."""
PATIENCE = 120.0
"""Seconds until a process that does not answer is given up."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a design. The defaults are the article's. Times in seconds."""

    processes: int = 3
    workers: int = 10
    jobs: int = 600
    hold: float = 0.020
    limit: int = 5
    lease: float = 5.0
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


class Usage(NamedTuple):
    """What a Redis server has done since it started."""

    commands: int
    """All calls, those inside scripts too; INFO itself is left out."""
    cpu: float
    """Seconds of its main thread, user and system."""


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
            for connection in connections:
                hear(connection)
            before = usage(redis)
            start = time.monotonic() + START_DELAY
            for connection in connections:
                connection.send(start)
            reports = [hear(connection) for connection in connections]
            after = usage(redis)
    jobs = [Job(*job) for _, own in reports for job in own]
    return LoadRun(
        run=max(job.done for job in jobs) - start,
        floor=sum(job.done - job.got for job in jobs) / load.limit,
        waits=sorted(job.got - job.asked for job in jobs),
        max_holders=max_holders(jobs),
        most_overtaken=most_overtaken(jobs, load.hold),
        commands_per_job=(after.commands - before.commands) / len(jobs),
        redis_cpu_per_job=(after.cpu - before.cpu) / len(jobs),
        worker_cpu_per_job=sum(cpu for cpu, _ in reports) / len(jobs),
    )


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
    return max(sum(other.asked > job.asked + margin and other.got < job.got for other in jobs) for job in jobs)


def usage(redis: Redis) -> Usage:
    """Read the server's own account."""
    stats = redis.info("commandstats")
    cpu = redis.info("cpu")
    return Usage(
        commands=sum(entry["calls"] for command, entry in stats.items() if command != "cmdstat_info"),
        cpu=cpu["used_cpu_user_main_thread"] + cpu["used_cpu_sys_main_thread"],
    )


@contextmanager
def processes(target: Callable[..., None], arguments: Sequence[tuple[object, ...]]) -> Iterator[list[Connection]]:
    """Run a function in one new process for each tuple of arguments, with a pipe to it as its first argument.

    At the end of the block they are waited for; if it ends with an error they are killed.
    """
    spawn = multiprocessing.get_context("spawn")
    running = []
    connections: list[Connection] = []
    try:
        for own in arguments:
            here, there = spawn.Pipe()
            process = spawn.Process(target=_run, args=(target, there, *own), daemon=True)
            process.start()
            there.close()
            running.append(process)
            connections.append(here)
        yield connections
        for process in running:
            process.join(PATIENCE)
    finally:
        for process, connection in zip(running, connections, strict=True):
            process.kill()
            process.join()
            connection.close()


def _run(target: Callable[..., None], *arguments: object) -> None:
    """Run in the new process: Ctrl-C is for the one that started it, which then ends this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target(*arguments)


def hear(connection: Connection) -> Any:
    """Receive what a process says.

    Raises:
        ChildProcessError: it has ended, or says nothing for two minutes.
    """
    if not connection.poll(PATIENCE):
        raise ChildProcessError(f"a worker process has not answered for {PATIENCE:.0f} s")
    try:
        return connection.recv()
    except EOFError:
        raise ChildProcessError("a worker process has failed; its error is printed above") from None


def _work(connection: Connection, subject: Subject, load: Load, shares: list[int]) -> None:
    """Do a process's share of the jobs."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if load.uvloop else None) as runner:
        runner.run(_work_async(connection, subject, load, shares))


async def _work_async(connection: Connection, subject: Subject, load: Load, shares: list[int]) -> None:
    design = await subject.open(load.limit, load.lease)
    await asyncio.gather(*(_worker(design, 1, 0.0) for _ in shares))
    connection.send("ready")
    start: float = await asyncio.to_thread(connection.recv)
    await asyncio.sleep(start - time.monotonic())
    cpu = time.process_time()
    jobs = await asyncio.gather(*(_worker(design, share, load.hold) for share in shares))
    cpu = time.process_time() - cpu
    connection.send((cpu, [tuple(job) for own in jobs for job in own]))
    await design.close()


async def _worker(design: Design, jobs: int, hold: float) -> list[Job]:
    log = []
    for _ in range(jobs):
        asked = time.monotonic()
        token = await design.acquire()
        got = time.monotonic()
        await asyncio.sleep(hold)
        done = time.monotonic()
        await design.release(token)
        log.append(Job(asked, got, done))
    return log
