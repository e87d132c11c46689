"""Article: the four designs of the article "Distributed Semaphores with Redis" and ours under the same load.

Each round runs the five designs one after another, each on an empty database. First come the rounds of the load: 3
processes of 10 asyncio workers take one of 5 slots, hold it for 20 ms and give it back, 600 times in all. Then those of
a crash: the two holders of a semaphore with a lease of 2 s are killed while a third process waits.

The figures shown are those of the median run by run time; most holders, most overtaken and the time after a crash are
the worst of all rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from benchmarks.crash import LEASE, LIMIT, run_crash
from benchmarks.designs import DESIGNS, TITLES, Subject
from benchmarks.designs.counter import counter_key
from benchmarks.load import COLUMNS, Load, LoadRun, figures, run_load, waits_histogram
from benchmarks.outcome import Bar, Column, Outcome, at_most

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.server import Bench

TITLE = "The load of the article"


@dataclass(frozen=True, slots=True)
class Result:
    """One design in all rounds."""

    design: str
    runs: Sequence[LoadRun]
    recoveries: Sequence[float | None]
    leaked: int | None = None
    """Counter design: what the counter says after the crash and the end of the waiter. The dead leave it at 2; a waiter
    that is stopped between its INCR and its DECR leaks one more."""

    @property
    def median(self) -> LoadRun:
        """The run of median run time; the figures of a result are those of this one run, but for the worst cases."""
        return sorted(self.runs, key=lambda run: run.run)[(len(self.runs) - 1) // 2]

    @property
    def recovery(self) -> float | None:
        """The slowest recovery in seconds; None if a slot did not come back at all."""
        known = [seconds for seconds in self.recoveries if seconds is not None]
        return max(known) if len(known) == len(self.recoveries) else None

    def row(self) -> dict[str, Any]:
        """Give the figures under the names of the results file."""
        return {
            "design": TITLES[self.design],
            **figures(self.median),
            "most_overtaken": max(run.most_overtaken for run in self.runs),
            "max_holders": max(run.max_holders for run in self.runs),
            "recovery_s": self.recovery if self.recovery is None else round(self.recovery, 3),
            "counter_after_crash": self.leaked,
            "run_s_of_all_rounds": [round(run.run, 3) for run in self.runs],
        }


def measure(bench: Bench) -> Outcome:
    """Run all rounds, A B C D E A B …, so that a slow minute of the machine meets every design alike."""
    load = Load(uvloop=bench.uvloop)
    subjects = {design: Subject(design, bench.url, f"bench/{design}") for design in DESIGNS}
    runs: dict[str, list[LoadRun]] = {design: [] for design in DESIGNS}
    recoveries: dict[str, list[float | None]] = {design: [] for design in DESIGNS}

    def turns(what: str) -> Iterator[str]:
        for turn, design in product(range(1, bench.rounds + 1), DESIGNS):
            bench.redis.flushdb()
            bench.say(f"{what}, round {turn} of {bench.rounds}: {TITLES[design]}")
            yield design

    for design in turns("load"):
        runs[design].append(run_load(subjects[design], load))
    leaked = None
    for design in turns("crash"):
        recoveries[design].append(run_crash(subjects[design]))
        if design == "counter":
            leaked = int(str(bench.redis.get(counter_key(subjects[design].name))))
    results = {
        design: Result(design, runs[design], recoveries[design], leaked if design == "counter" else None)
        for design in DESIGNS
    }
    return Outcome(
        load=f"{load.jobs} jobs of {load.processes} processes of {load.workers} workers, {load.limit} slots, "
        f"{load.hold * 1e3:.0f} ms a job, workers on {'uvloop' if load.uvloop else 'asyncio'}, rounds: {bench.rounds}. "
        f"Nominal floor: {load.nominal_floor:.2f} s.",
        columns={"design": Column("design"), **COLUMNS, "recovery_s": Column("crash s", 2)},
        rows=[result.row() for result in results.values()],
        bars=_bars(results, load.limit),
        series={TITLES[design]: waits_histogram(result.median) for design, result in results.items()},
    )


def _bars(results: dict[str, Result], limit: int) -> list[Bar]:
    """Compare ours with the promises; needs the results of all five designs."""
    ours, notify, polling, counter = (results[design] for design in ("ours", "notify", "polling", "counter"))
    run = ours.median
    spread = run.percentile(99) / run.percentile(50)
    cpu = run.redis_cpu_per_job / notify.median.redis_cpu_per_job
    overtaken = max(each.most_overtaken for each in polling.runs)
    unfair = polling.median.percentile(99) / polling.median.percentile(50)
    return [
        at_most("run time ≤ 0.90 of FIFO + notify", run.run / notify.median.run, 0.90, places=3),
        at_most("run time ≤ 1.04 of the floor of measured holds", run.run / run.floor, 1.04, places=3),
        at_most("wait p99 ≤ 1.04 p50", spread, 1.04, places=3),
        at_most(f"never more than {limit} holders", max(each.max_holders for each in ours.runs), limit, " at most", 0),
        at_most("≤ 25 commands a job, with Lua's", run.commands_per_job, 25, places=1),
        at_most("Redis CPU ≤ 0.25 of FIFO + notify", cpu, 0.25, places=3),
        Bar(
            f"crash recovered within {LEASE + 0.1:.1f} s",
            "never" if ours.recovery is None else f"{ours.recovery:.2f} s",
            ours.recovery is not None and ours.recovery <= LEASE + 0.1,
        ),
        Bar(
            "counter shown to leak",
            f"counter at {counter.leaked} with nobody left",
            counter.recovery is None and (counter.leaked or 0) >= LIMIT,
        ),
        Bar(
            "polling shown to be unfair",
            f"overtaken {overtaken} times, p99 = {unfair:.0f} p50",
            overtaken > 100 and unfair > 10,
        ),
    ]
