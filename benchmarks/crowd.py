"""Crowd: 3 processes of 1,000 workers share 50 slots for 10 ms each.

The run is held against its floor: the sum of the holds as they were measured, divided by the limit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from benchmarks.designs import Subject
from benchmarks.load import COLUMNS, Load, figures, run_load
from benchmarks.outcome import Outcome, at_most

if TYPE_CHECKING:
    from benchmarks.server import Bench

TITLE = "A crowd of workers"
LOAD = Load(processes=3, workers=1000, jobs=15_000, hold=0.010, limit=50)


def measure(bench: Bench) -> Outcome:
    """Run the load once."""
    bench.say(f"{LOAD.jobs:,} jobs of {LOAD.processes} x {LOAD.workers:,} workers")
    load = replace(LOAD, uvloop=bench.uvloop)
    run = run_load(Subject("ours", bench.url, "bench/crowd"), load)
    return Outcome(
        load=f"{LOAD.jobs:,} jobs of {LOAD.processes} processes of {LOAD.workers:,} workers, {LOAD.limit} slots, "
        f"{LOAD.hold * 1e3:.0f} ms a job, workers on {'uvloop' if load.uvloop else 'asyncio'}.",
        columns=COLUMNS,
        rows=[figures(run)],
        bars=[
            at_most("run time ≤ 1.2 of the floor of measured holds", run.run / run.floor, 1.2, places=3),
            at_most(f"never more than {LOAD.limit} holders", run.max_holders, LOAD.limit, " at most", 0),
        ],
    )
