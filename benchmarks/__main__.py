"""Measure, print and record: a file in benchmarks/results for each benchmark; docs/benchmarks.md is made from them.

Figures are ratios within one run wherever that is possible; they need an idle machine all the same.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from benchmarks.outcome import BUSY
from benchmarks.server import Bench, busy, machine_of, server

from redis import Redis, RedisError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType

    from benchmarks.outcome import Outcome
    from rich.console import Console

NAMES = (
    "article",
    "handoff",
    "pairs",
    "depth",
    "crowd",
    "occupancy",
    "order",
    "weights",
    "recovery",
    "parked",
    "cluster",
)
"""The modules of this folder that are benchmarks, in the order of the page."""
ON_REQUEST = ("peers", "operator")
"""Those that run only when they are named: they install libraries from public registries, or start a Kubernetes."""
MODULES = {"operator": "scale"}
"""Modules that are not named after their benchmark, so as not to be named after one of Python's."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run benchmarks; the exit status is 1 only with `--check` and a promise that was not kept."""
    from rich.console import Console  # noqa: PLC0415  each worker process imports this file too

    options = _options(argv)
    # Wide enough for every table where nobody says how wide: in a file or a log.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    start = time.monotonic()
    try:
        kept = _run(options, console)
    finally:
        if not options.no_write:
            from benchmarks import docs  # noqa: PLC0415

            docs.write()
    console.print(f"\n{time.monotonic() - start:.0f} s in all")
    return int(options.check and not kept)


def _run(options: argparse.Namespace, console: Console) -> bool:
    """Run what was asked for, one after another; give whether every promise was kept."""
    kept = True
    with server(options.redis_url) as url, Redis.from_url(url, decode_responses=True) as redis:
        machine = machine_of(redis)
        console.print(machine)
        for name in options.names or NAMES:
            redis.flushdb()
            if (others := busy()) > BUSY:
                console.print(f"[yellow]other programs use {others:.0%} of the CPUs: figures will be worse for it[/]")
            module = _module(name)
            with _line(console) as say:
                bench = Bench(url, redis, say, rounds=options.rounds, uvloop=options.uvloop)
                outcome: Outcome = replace(module.measure(bench), machine=machine, busy=round(others, 2))
            _show(console, name, module.TITLE, outcome)
            kept = kept and outcome.kept
            if not options.no_write:
                outcome.write(name)
        redis.flushdb()
    return kept


def _module(name: str) -> ModuleType:
    return import_module(f"benchmarks.{MODULES.get(name, name)}")


def _show(console: Console, name: str, title: str, outcome: Outcome) -> None:
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    console.print(f"\n[bold]{name}: {title}[/]\n{outcome.load}\n")
    figures = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for position, column in enumerate(outcome.columns.values()):
        heading = column.heading.replace(" ", "\n") if len(outcome.columns) > 5 else column.heading
        figures.add_column(heading, justify="right" if position else "left", no_wrap=True)
    for cells in outcome.cells():
        figures.add_row(*cells)
    bars = Table("promise", "measured", "", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for bar in outcome.bars:
        bars.add_row(bar.promise, bar.measured, "[green]kept[/]" if bar.kept else "[bold red]NOT KEPT[/]")
    console.print(figures, "", bars)


@contextmanager
def _line(console: Console) -> Iterator[Callable[[str], None]]:
    """Show what is being done: on a terminal in one line, which costs CPU only when it changes."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    if not console.is_terminal:
        yield lambda text: console.print(f"  {text}")
        return
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda text: progress.update(task, description=text, refresh=True)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"{__doc__}\nbenchmarks:\n{_about()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = parser.add_argument
    option("names", nargs="*", metavar="NAME", help=f"what to measure (default: all but {', '.join(ON_REQUEST)})")
    option(
        "--rounds",
        type=int,
        choices=range(1, 10),
        default=3,
        metavar="N",
        help="rounds of `article` and `peers` (default: 3)",
    )
    option(
        "--redis-url",
        default=os.environ.get("SEMAPHORE_REDIS_URL"),
        help="use this server instead of starting one; its database must be empty and is flushed between the runs "
        "(default: SEMAPHORE_REDIS_URL, if set)",
    )
    option("--uvloop", action="store_true", help="run the workers of `article` and `crowd` on uvloop")
    option("--check", action="store_true", help="exit with status 1 if a promise was not kept")
    option("--no-write", action="store_true", help="only print; leave results, page and pictures as they are")
    options = parser.parse_args(argv)
    for name in options.names:
        if name not in (*NAMES, *ON_REQUEST):
            parser.error(f"there is no benchmark {name!r}: choose from {', '.join((*NAMES, *ON_REQUEST))}")
    return options


def _about() -> str:
    """List the benchmarks with the first sentence of each."""
    lines = []
    for name in (*NAMES, *ON_REQUEST):
        first = (_module(name).__doc__ or "").partition("\n")[0]
        lines.append(f"  {name:10} {first.partition(': ')[2] or first}")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped; what was finished is written")
    except ChildProcessError as error:
        sys.exit(str(error))
    except RedisError as error:
        sys.exit(f"Redis cannot be used: {error}; without --redis-url and SEMAPHORE_REDIS_URL a server is started")
