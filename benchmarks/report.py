"""What is made of the runs: a result for each design, the promises that ours has to keep, tables, JSON and page."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.designs import TITLES
from benchmarks.recovery import LEASE, LIMIT
from rich.box import SIMPLE_HEAD
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.load import Load, LoadRun

    from redis import Redis

COLUMNS = {
    "run_s": ("run", "s"),
    "run_over_floor": ("÷", "floor"),
    "p50_ms": ("p50", "ms"),
    "p99_ms": ("p99", "ms"),
    "max_ms": ("max", "ms"),
    "most_overtaken": ("over-", "taken"),
    "max_holders": ("most", "held"),
    "recovery_s": ("crash", "s"),
    "commands_per_job": ("calls", "a job"),
    "redis_cpu_us_per_job": ("Redis", "CPU µs"),
    "worker_cpu_us_per_job": ("worker", "CPU µs"),
}
"""The figures that the tables show, with the two lines of their headings."""
PLACES = {"run_s": 2, "run_over_floor": 2, "recovery_s": 2, "commands_per_job": 1}
BEGIN, END = "<!-- figures: written by the benchmark -->", "<!-- end of figures -->"


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
        run = self.median
        recovery = self.recovery
        return {
            "design": self.design,
            "run_s": round(run.run, 3),
            "floor_s": round(run.floor, 3),
            "p50_ms": round(run.percentile(50) * 1e3, 1),
            "p99_ms": round(run.percentile(99) * 1e3, 1),
            "max_ms": round(run.waits[-1] * 1e3, 1),
            "max_holders": max(run.max_holders for run in self.runs),
            "recovery_s": recovery if recovery is None else round(recovery, 3),
            "commands_per_job": round(run.commands_per_job, 1),
            "redis_cpu_us_per_job": round(run.redis_cpu_per_job * 1e6, 1),
            "worker_cpu_us_per_job": round(run.worker_cpu_per_job * 1e6),
            "run_over_floor": round(run.run / run.floor, 3),
            "most_overtaken": max(run.most_overtaken for run in self.runs),
            "counter_after_crash": self.leaked,
            "run_s_of_all_rounds": [round(run.run, 3) for run in self.runs],
        }


@dataclass(frozen=True, slots=True)
class Bar:
    """One promise, and what was measured."""

    promise: str
    measured: str
    kept: bool


def bars(results: dict[str, Result], limit: int) -> list[Bar]:
    """Compare ours with the promises; needs the results of all five designs."""
    ours, notify, polling, counter = (results[design] for design in ("ours", "notify", "polling", "counter"))
    run = ours.median
    time = run.run / notify.median.run
    spread = run.percentile(99) / run.percentile(50)
    holders = max(each.max_holders for each in ours.runs)
    cpu = run.redis_cpu_per_job / notify.median.redis_cpu_per_job
    overtaken = max(each.most_overtaken for each in polling.runs)
    unfair = polling.median.percentile(99) / polling.median.percentile(50)
    return [
        Bar("run time ≤ 0.92 of FIFO + notify", f"{time:.3f}", time <= 0.92),
        Bar("wait p99 ≤ 1.05 p50", f"{spread:.3f}", spread <= 1.05),
        Bar(f"never more than {limit} holders", f"{holders} at most", holders <= limit),
        Bar("≤ 30 commands a job", f"{run.commands_per_job:.1f}", run.commands_per_job <= 30),
        Bar("Redis CPU ≤ 0.35 of FIFO + notify", f"{cpu:.3f}", cpu <= 0.35),
        Bar(
            f"crash recovered within {LEASE + 0.3:.1f} s",
            "never" if ours.recovery is None else f"{ours.recovery:.2f} s",
            ours.recovery is not None and ours.recovery <= LEASE + 0.3,
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


def results_table(results: Sequence[Result]) -> Table:
    """Lay the results out for the terminal."""
    shown = Table(box=SIMPLE_HEAD, show_edge=False, padding=0)
    shown.add_column("design", no_wrap=True)
    for heading in COLUMNS.values():
        shown.add_column("\n".join(heading), justify="right", no_wrap=True)
    for result in results:
        shown.add_row(TITLES[result.design], *_cells(result), style="bold" if result.design == "ours" else None)
    return shown


def bars_table(promises: Sequence[Bar]) -> Table:
    """Lay the promises out for the terminal."""
    shown = Table("promise", "measured", "", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for bar in promises:
        shown.add_row(bar.promise, bar.measured, "[green]kept[/]" if bar.kept else "[bold red]NOT KEPT[/]")
    return shown


def _cells(result: Result) -> list[str]:
    row = result.row()
    return ["never" if row[key] is None else f"{row[key]:.{PLACES.get(key, 0)}f}" for key in COLUMNS]


def write_json(results: Sequence[Result], path: Path) -> None:
    """Write the figures of all designs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([result.row() for result in results], indent=2) + "\n")


def write_page(results: Sequence[Result], promises: Sequence[Bar], machine: str, load: Load, page: Path) -> None:
    """Put the figures into the page, in the place that is marked for them.

    Raises:
        ValueError: the page has no such place.
    """
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page} has no place for the figures: put in the lines {BEGIN!r} and {END!r}")
    lines = [
        f"Measured on {machine}.",
        f"{load.jobs} jobs a run, workers on {'uvloop' if load.uvloop else 'asyncio'}, rounds: {len(results[0].runs)}.",
        f"Nominal floor: {load.nominal_floor:.2f} s.",
        "",
        f"| design | {' | '.join(' '.join(heading).replace('- ', '') for heading in COLUMNS.values())} |",
        f"|---|{'---:|' * len(COLUMNS)}",
        *(f"| {TITLES[result.design]} | {' | '.join(_cells(result))} |" for result in results),
        "",
        "| promise | measured | |",
        "|---|---:|---|",
        *(f"| {bar.promise} | {bar.measured} | {'kept' if bar.kept else '**not kept**'} |" for bar in promises),
    ]
    page.write_text(f"{before}{begin}\n\n" + "\n".join(lines) + f"\n\n{end}{after}")


def machine_of(redis: Redis) -> str:
    """Name the machine and the versions that the figures belong to."""
    server = redis.info("server")
    valkey = server.get("valkey_version")
    return ", ".join(
        [
            f"{len(os.sched_getaffinity(0))} cores of {_cpu_model()}",
            f"{platform.system()} {platform.release()}",
            f"Valkey {valkey}" if valkey else f"Redis {server['redis_version']}",
            f"Python {platform.python_version()}",
            f"redis-py {version('redis')} with hiredis {version('hiredis')}",
            f"uvloop {version('uvloop')}",
        ]
    )


def _cpu_model() -> str:
    cpus = Path("/proc/cpuinfo")
    for line in cpus.read_text().splitlines() if cpus.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
