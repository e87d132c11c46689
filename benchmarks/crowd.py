"""Crowd: 3 processes of 1,000 workers share 50 slots for 10 ms each.

The run is held against its floor: the sum of the holds as they were measured, divided by the limit. Holds of exactly
10 ms keep all slots in step: 50 come free at once, and the hand-offs of one turn queue up for the CPU. So the same is
run with holds of 5 to 15 ms too, as work is rarely in step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.designs import Subject
from benchmarks.load import COLUMNS, Load, figures, run_load
from benchmarks.outcome import Column, Outcome, at_most

if TYPE_CHECKING:
    from benchmarks.server import Bench

TITLE = "A crowd of workers"
LOAD = Load(processes=3, workers=1000, jobs=15_000, hold=0.010, limit=50)


def measure(bench: Bench) -> Outcome:
    """Run the load in step, and out of step."""
    runs = {}
    for spread, what in ((0.0, "10 ms"), (0.5, "5 to 15 ms")):
        bench.say(f"{LOAD.jobs:,} jobs of {LOAD.processes} x {LOAD.workers:,} workers, holds of {what}")
        load = replace(LOAD, spread=spread, uvloop=bench.uvloop)
        runs[what] = run_load(Subject("ours", bench.url, f"bench/crowd-{spread}"), load)
    exact = runs["10 ms"]
    return Outcome(
        load=f"{LOAD.jobs:,} jobs of {LOAD.processes} processes of {LOAD.workers:,} workers, {LOAD.limit} slots, "
        f"workers on {'uvloop' if bench.uvloop else 'asyncio'}.",
        columns={"holds": Column("holds"), **{key: COLUMNS[key] for key in COLUMNS if key != "most_overtaken"}},
        rows=[{"holds": what, **figures(run)} for what, run in runs.items()],
        bars=[
            at_most("10 ms each: run ≤ 1.2 of the floor of measured holds", exact.run / exact.floor, 1.2, places=3),
            at_most(
                f"never more than {LOAD.limit} holders",
                max(run.max_holders for run in runs.values()),
                LOAD.limit,
                " at most",
                0,
            ),
        ],
    )
