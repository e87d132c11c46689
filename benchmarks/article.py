"""The article's four designs and ours under the same load, on the same server, in one run.

Each round runs the five designs one after another, each on an empty database. First come the rounds of the load: 3
processes of 10 asyncio workers take one of 5 slots, hold it for 20 ms and give it back, 600 times in all. Then those of
a crash: the two holders of a semaphore with a lease of 2 s are killed while a third process waits.

The figures shown are those of the median run by run time; most holders, most overtaken and the time after a crash are
the worst of all rounds. They are written to benchmarks/results/article.json and docs/benchmarks.md, and drawn in
docs/article-waits.svg.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.designs import DESIGNS, TITLES, Subject
from benchmarks.designs.counter import counter_key
from benchmarks.load import Load, LoadRun, run_load
from benchmarks.recovery import run_recovery

from distributed_semaphore.testing import RedisServer, ServerStartError, find_servers
from redis import Redis, RedisError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.report import Result

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results/article.json"
PAGE = ROOT / "docs/benchmarks.md"
PICTURE = ROOT / "docs/article-waits.svg"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status is 1 only with `--check` and a promise that was not kept."""
    # Imported here, because each worker process imports this file too and shall start without tables and pictures.
    from benchmarks import picture, report  # noqa: PLC0415
    from rich.console import Console  # noqa: PLC0415

    options = _options(argv)
    load = Load(jobs=options.jobs, uvloop=options.uvloop)
    console = Console()
    with _server(options.redis_url) as url, Redis.from_url(url, decode_responses=True) as redis:
        machine = report.machine_of(redis)
        console.print(f"{machine}\n{load.jobs} jobs a run, nominal floor {load.nominal_floor:.2f} s", highlight=False)
        if (others := _busy()) > 0.1:
            console.print(
                f"[yellow]other programs use {others:.0%} of the CPUs: waits will be longer than they need be[/]"
            )
        results = _measure(url, redis, load, options.rounds)
    bars = report.bars(results, load.limit)
    rows = list(results.values())
    console.print(report.results_table(rows), "", report.bars_table(bars))
    if not options.no_write:
        report.write_json(rows, RESULTS)
        report.write_page(rows, bars, machine, load, PAGE)
        picture.draw_waits(rows, load, PICTURE)
        console.print("written:", *(path.relative_to(ROOT) for path in (RESULTS, PAGE, PICTURE)), highlight=False)
    return int(options.check and not all(bar.kept for bar in bars))


def _measure(url: str, redis: Redis, load: Load, rounds: int) -> dict[str, Result]:
    """Run all rounds, A B C D E A B …, so that a slow minute of the machine meets every design alike."""
    from benchmarks.report import Result  # noqa: PLC0415
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    subjects = {design: Subject(design, url, f"bench/{design}") for design in DESIGNS}
    runs: dict[str, list[LoadRun]] = {design: [] for design in DESIGNS}
    recoveries: dict[str, list[float | None]] = {design: [] for design in DESIGNS}
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, auto_refresh=False, transient=True) as progress:  # a moving bar would cost the designs CPU
        task = progress.add_task("", total=2 * rounds * len(DESIGNS))

        def turns(what: str) -> Iterator[str]:
            for turn, design in product(range(1, rounds + 1), DESIGNS):
                redis.flushdb()
                text = f"{what}, round {turn} of {rounds}: {TITLES[design]:15}"
                progress.update(task, description=text, refresh=True)
                yield design
                progress.advance(task)

        for design in turns("load"):
            runs[design].append(run_load(subjects[design], load))
        leaked = None
        for design in turns("crash"):
            recoveries[design].append(run_recovery(subjects[design]))
            if design == "counter":
                leaked = int(str(redis.get(counter_key(subjects[design].name))))
    redis.flushdb()
    return {
        design: Result(design, runs[design], recoveries[design], leaked if design == "counter" else None)
        for design in DESIGNS
    }


def _busy(seconds: float = 0.5) -> float:
    """Measure which part of the CPUs' time is in use; 0 where the system does not tell."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    before = [int(ticks) for ticks in stat.read_text().split()[1:8]]
    time.sleep(seconds)
    user, nice, system, idle, iowait, irq, softirq = (
        int(ticks) - earlier for ticks, earlier in zip(stat.read_text().split()[1:8], before, strict=True)
    )
    working = user + nice + system + irq + softirq
    return working / max(1, working + idle + iowait)


@contextmanager
def _server(url: str | None) -> Iterator[str]:
    """Give the address of a server: the one asked for, else a new one, Debian's redis-server before an embedded one."""
    if url:
        with Redis.from_url(url) as redis:
            if redis.dbsize():
                shown = redis.connection_pool.connection_kwargs
                where = f"database {shown.get('db', 0)} of {shown.get('host', shown.get('path'))}"
                sys.exit(
                    f"{where} is not empty, and this benchmark flushes it: name an empty one, redis://host:6379/15"
                )
        yield url
        return
    try:
        server = RedisServer(find_servers().get("redis")).start()
    except ServerStartError as error:
        sys.exit(str(error))
    try:
        yield server.url
    finally:
        server.stop()


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.article", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--rounds", type=_at_least(1), default=3, help="how often each design runs (default: 3)")
    option("--jobs", type=_at_least(30), default=600, help="jobs of a run (default: 600; 60 for a quick look)")
    option(
        "--redis-url",
        default=os.environ.get("SEMAPHORE_REDIS_URL"),
        help="use this server instead of starting one; its database must be empty and is flushed between the runs "
        "(default: SEMAPHORE_REDIS_URL, if set)",
    )
    option("--uvloop", action="store_true", help="run the workers of all designs on uvloop")
    option("--check", action="store_true", help="exit with status 1 if a promise was not kept")
    option("--no-write", action="store_true", help="only print; leave results, page and picture as they are")
    return parser.parse_args(argv)


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return number


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; nothing was written")
    except ChildProcessError as error:
        sys.exit(str(error))
    except RedisError as error:
        sys.exit(f"Redis cannot be used: {error}; without --redis-url and SEMAPHORE_REDIS_URL a server is started")
