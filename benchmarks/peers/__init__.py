"""Peers: public libraries and ours under the article's load, side by side.

Each library runs in an environment of its own and is used as its documentation says, a block (or acquire and release)
for each job. Rounds are interleaved; the figures are those of the median run by run time, most overtaken and most held
the worst of all. Then two processes that hold the only two slots are killed while a third waits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.load import COLUMNS, Job, Load, LoadRun, figures, summarise, waits_histogram
from benchmarks.outcome import Bar, Column, Outcome, at_most
from benchmarks.peers.install import PEERS, LeftOutError, command
from benchmarks.peers.process import Worker
from benchmarks.server import usage
from benchmarks.workers import START_DELAY

if TYPE_CHECKING:
    from benchmarks.server import Bench

TITLE = "Beside public libraries"
LOAD = Load()
LIMIT = 2
LEASE = 2
PATIENCE = 15.0
"""Seconds after which a crashed holder's slot counts as lost."""
SETTLE = 0.3
OURS = "this project"


def measure(bench: Bench) -> Outcome:
    """Install what is missing, run the load in rounds, then the crash."""
    commands = {}
    left_out = []
    for peer in PEERS:
        try:
            commands[OURS if peer.name == "ours" else peer.name] = command(peer, bench.say)
        except LeftOutError as error:
            left_out.append(f"{peer.name} is left out: {error}.")
            bench.say(left_out[-1])
    runs: dict[str, list[LoadRun]] = {name: [] for name in commands}
    for turn in range(1, bench.rounds + 1):
        for name, start in commands.items():
            bench.redis.flushdb()
            bench.say(f"load, round {turn} of {bench.rounds}: {name}")
            runs[name].append(_run(bench, *start))
    rows = {}
    for name, start in commands.items():
        bench.redis.flushdb()
        bench.say(f"crash: {name}")
        rows[name] = _row(name, runs[name], _crash(bench, *start))
    return Outcome(
        load=f"{LOAD.jobs} jobs of {LOAD.processes} processes of {LOAD.workers} workers, {LOAD.limit} slots, "
        f"{LOAD.hold * 1e3:.0f} ms a job, rounds: {bench.rounds}. Crash: {LIMIT} slots, a lease of {LEASE} s where "
        f"there is one; never: not within {PATIENCE:.0f} s. {' '.join(left_out)}".rstrip(),
        columns={"design": Column("library"), **COLUMNS, "recovery_s": Column("crash s", 2)},
        rows=list(rows.values()),
        bars=_bars(rows),
        series={name: waits_histogram(_median(runs[name])) for name in commands},
    )


def _bars(rows: dict[str, dict[str, Any]]) -> list[Bar]:
    """Compare ours with the best of the others in each respect."""
    ours = rows.pop(OURS)
    bars = []
    for key, what, places in (
        ("run_over_floor", "run ÷ floor: no library is nearer to its floor", 3),
        ("p99_ms", "p99 of the wait: none is lower", 0),
        ("redis_cpu_us_per_job", "Redis CPU a job, µs: none needs less", 0),
        ("recovery_s", "slot of a crashed holder: none brings it back sooner than 0.1 s before ours", 2),
    ):
        name, best = min(
            ((name, row[key]) for name, row in rows.items() if row[key] is not None), key=lambda each: each[1]
        )
        slack = 0.1 if key == "recovery_s" else 0.0
        measured = f"{ours[key]:.{places}f}; {name} {best:.{places}f}"
        bars.append(Bar(what, measured, ours[key] <= best + slack))
    rows[OURS] = ours
    bars.append(at_most(f"never more than {LOAD.limit} holders", ours["max_holders"], LOAD.limit, " at most", 0))
    return bars


def _row(name: str, runs: list[LoadRun], recovery: float | None) -> dict[str, Any]:
    return {
        "design": name,
        **figures(_median(runs)),
        "most_overtaken": max(run.most_overtaken for run in runs),
        "max_holders": max(run.max_holders for run in runs),
        "recovery_s": recovery if recovery is None else round(recovery, 2),
        "run_s_of_all_rounds": [round(run.run, 3) for run in runs],
    }


def _median(runs: list[LoadRun]) -> LoadRun:
    return sorted(runs, key=lambda run: run.run)[(len(runs) - 1) // 2]


def _run(bench: Bench, words: list[str], environment: dict[str, str]) -> LoadRun:
    """Run the load once."""
    arguments = [bench.url, "bench-load", str(LOAD.limit), str(int(LOAD.lease)), str(LOAD.workers)]
    with Worker.several(LOAD.processes, [*words, *arguments], environment) as workers:
        start = time.monotonic() + START_DELAY
        for worker, shares in zip(workers, LOAD.shares(), strict=True):
            worker.order(start=start, hold=LOAD.hold, shares=shares)
        before = usage(bench.redis)
        answers = [worker.hear() for worker in workers]
        after = usage(bench.redis)
    jobs = [Job(*job) for answer in answers for job in answer["jobs"]]
    return summarise(
        LOAD, jobs, start=start, before=before, after=after, worker_cpu=sum(answer["cpu"] for answer in answers)
    )


def _crash(bench: Bench, words: list[str], environment: dict[str, str]) -> float | None:
    """Give the seconds from SIGKILL of two holders to the grant of a waiter; None if it did not come."""
    arguments = [bench.url, "bench-crash", str(LIMIT), str(LEASE), "1"]
    with Worker.several(LIMIT + 1, [*words, *arguments], environment) as (waiter, *holders):
        for holder in holders:
            holder.order(keep=True)
            holder.hear()
        waiter.order(keep=True)
        time.sleep(SETTLE)
        killed = time.monotonic()
        for holder in holders:
            holder.kill()
        got = waiter.hear(PATIENCE, optional=True)
    return got["got"] - killed if got else None
