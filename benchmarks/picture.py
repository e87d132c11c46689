"""The picture: how long the jobs of each design waited, as a distribution on a logarithmic axis of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from benchmarks.designs import TITLES
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.load import Load, LoadRun
    from benchmarks.report import Result
    from matplotlib.axes import Axes

SHORTEST, LONGEST, BINS = 1e-4, 5.0, 94
INK, QUIET, GRID, THEIRS, OURS = "#1f2328", "#59636e", "#e4e8ec", "#8294a8", "#0072b2"
TICKS = {0.001: "1 ms", 0.01: "10 ms", 0.1: "100 ms", 1.0: "1 s"}
RIGHTS = 0.795, 0.89, 0.985
"""Right edges of the columns of figures, as parts of the picture's width."""
FEWEST = 0.035
"""Height of a bar that stands for a single job, as a part of the row: rare long waits are the point."""


def draw_waits(results: Sequence[Result], load: Load, path: Path) -> None:
    """Draw the waits of each design's median run. Equal waits give an equal file."""
    figure = Figure(figsize=(8.6, 5.0), facecolor="white")
    rows: Sequence[Axes] = figure.subplots(len(results), sharex=True)
    figure.subplots_adjust(left=0.165, right=0.71, top=0.82, bottom=0.07, hspace=0.12)
    for row, result in zip(rows, results, strict=True):
        _draw_row(figure, row, TITLES[result.design], result.median, OURS if result.design == "ours" else THEIRS)
    rows[-1].set_xticks(list(TICKS), list(TICKS.values()))
    rows[-1].tick_params(axis="x", labelsize=10, labelcolor=QUIET)
    title = f"How long {load.jobs} jobs waited for one of {load.limit} slots"
    figure.text(0.012, 0.94, title, size=14, weight="bold", color=INK)
    work = f"{load.processes} processes of {load.workers} workers, {load.hold * 1e3:.0f} ms of work a job"
    figure.text(0.012, 0.887, f"{work}. Height: number of jobs. Line: median.", size=10, color=QUIET)
    for right, heading in zip(RIGHTS, ("median", "99 % within", "longest"), strict=True):
        figure.text(right, 0.83, heading, size=9, color=QUIET, ha="right")
    with mpl.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none"}):
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None, "Title": title})


def _draw_row(figure: Figure, row: Axes, title: str, run: LoadRun, color: str) -> None:
    edges = np.geomspace(SHORTEST, LONGEST, BINS + 1)
    counts, _ = np.histogram(np.clip(run.waits, SHORTEST, LONGEST), edges)
    heights = np.where(counts > 0, np.maximum(counts / counts.max(), FEWEST), 0)
    row.stairs(heights, edges, fill=True, color=color)
    row.axvline(run.percentile(50), color=INK, linewidth=1.2)
    row.set(xscale="log", xlim=(SHORTEST, LONGEST), ylim=(0, 1.45), yticks=[])
    row.minorticks_off()
    row.grid(axis="x", color=GRID, linewidth=1)
    row.set_axisbelow(True)
    row.spines[["top", "left", "right"]].set_visible(False)
    row.spines["bottom"].set_color(GRID)
    row.tick_params(axis="x", length=0)
    middle = sum(row.get_position().intervaly) / 2
    style: dict[str, Any] = {"size": 10.5, "color": color if color == OURS else INK, "va": "center"}
    style["weight"] = "bold" if color == OURS else "normal"
    figure.text(0.012, middle, title, **style)
    for right, wait in zip(RIGHTS, (run.percentile(50), run.percentile(99), run.waits[-1]), strict=True):
        figure.text(right, middle, _time(wait), ha="right", **style)


def _time(seconds: float) -> str:
    return (
        f"{seconds:.1f} s"
        if seconds >= 0.9995
        else f"{seconds * 1e3:.0f} ms"
        if seconds >= 0.0095
        else f"{seconds * 1e3:.1f} ms"
    )
