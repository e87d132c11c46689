"""The pictures: drawn from the results files alone, and equal figures give equal files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from benchmarks.designs import TITLES
from benchmarks.load import WAIT_EDGES
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from benchmarks.outcome import Outcome
    from matplotlib.axes import Axes

INK, QUIET, GRID, THEIRS, OURS = "#1f2328", "#59636e", "#e4e8ec", "#8294a8", "#0072b2"
TICKS = {0.001: "1 ms", 0.01: "10 ms", 0.1: "100 ms", 1.0: "1 s"}
RIGHTS = 0.78, 0.885, 0.985
"""Right edges of the columns of figures, as parts of the picture's width."""
FEWEST = 0.035
"""Height of a bar that stands for a single job, as a part of the row: rare long waits are the point."""


def draw_waits(outcome: Outcome, path: Path) -> None:
    """Draw the waits of each design as a distribution on a logarithmic axis of time."""
    rows = outcome.rows
    below = f"{outcome.load.partition(', rounds')[0].partition(', workers')[0]}. Height: number of jobs. Line: median."
    figure = _figure(5.0, "How long jobs waited for a slot", below)
    axes: Sequence[Axes] = figure.subplots(len(rows), sharex=True)
    left = 0.03 + 0.0095 * max(len(row["design"]) for row in rows)
    figure.subplots_adjust(left=left, right=0.71, top=0.82, bottom=0.07, hspace=0.12)
    for axis, row in zip(axes, rows, strict=True):
        _draw_row(figure, axis, row, outcome.series[row["design"]])
    axes[-1].set_xticks(list(TICKS), list(TICKS.values()))
    axes[-1].tick_params(axis="x", labelsize=10, labelcolor=QUIET)
    for right, heading in zip(RIGHTS, ("median", "99 % within", "longest"), strict=True):
        figure.text(right, 0.83, heading, size=9, color=QUIET, ha="right")
    _save(figure, path)


def draw_handoff(outcome: Outcome, path: Path) -> None:
    """Draw how long hand-offs took, beside plain messages of the same run."""
    figure = _figure(2.9, "From release to next holder, process to process", outcome.load)
    axis = figure.subplots()
    figure.subplots_adjust(left=0.03, right=0.97, top=0.74, bottom=0.16)
    longest = max(3.0, *(max(series) for series in outcome.series.values()))
    edges = np.linspace(0, longest, 121)
    named = {"message_ms": ("a plain message", THEIRS), "slot_ms": ("a slot", OURS)}
    for key, (label, color) in named.items():
        counts, _ = np.histogram(outcome.series[key], edges)
        axis.stairs(counts, edges, fill=True, color=color, alpha=0.75)
        peak = int(counts.argmax())
        axis.text(edges[peak], counts.max() * 1.05, f"{label}: {np.median(outcome.series[key]):.2f} ms", color=color)
    axis.set(xlim=(0, longest), yticks=[], xlabel="ms")
    axis.margins(y=0.25)
    _plain(axis)
    _save(figure, path)


def draw_depth(outcome: Outcome, path: Path) -> None:
    """Draw the commands of a release over the length of the queue, both on logarithmic axes."""
    figure = _figure(
        3.4, "What one release costs Redis, by the length of the queue", "Commands, those inside scripts too."
    )
    axis = figure.subplots()
    figure.subplots_adjust(left=0.07, right=0.8, top=0.8, bottom=0.15)
    named = {
        "notify_1": ("article's FIFO + notify", THEIRS),
        "ours_3": ("ours, 3 processes", OURS),
        "ours_1": ("ours, 1 process", OURS),
    }
    for key, (label, color) in named.items():
        depths, commands = zip(*outcome.series[key], strict=True)
        axis.plot(depths, commands, color=color, marker="o", linewidth=2, markersize=5)
        raised = 1.25 if key == "ours_3" else 0.8 if key == "ours_1" else 1.0
        axis.text(depths[-1] * 1.25, commands[-1] * raised, label, color=color, va="center", size=10.5)
    axis.set(xscale="log", yscale="log", xlim=(8, 11_000), ylim=(8, 20_000), xlabel="waiters")
    axis.set_xticks([10, 100, 1000, 10_000], ["10", "100", "1,000", "10,000"])
    axis.set_yticks([10, 100, 1000, 10_000], ["10", "100", "1,000", "10,000"])
    axis.minorticks_off()
    _plain(axis)
    axis.grid(axis="y", color=GRID, linewidth=1)
    _save(figure, path)


def draw_occupancy(outcome: Outcome, path: Path) -> None:
    """Draw how many slots were held over time."""
    figure = _figure(
        2.9, "How many of 200 slots are held, until fewer than 200 requests are left", outcome.load.partition(". ")[0]
    )
    axis = figure.subplots()
    figure.subplots_adjust(left=0.06, right=0.97, top=0.74, bottom=0.17)
    times, held = outcome.series["time_s"], outcome.series["held"]
    axis.fill_between(times, held, color=OURS, alpha=0.8, linewidth=0)
    axis.axhline(max(held), color=GRID, linewidth=1)
    axis.set(xlim=(0, times[-1]), ylim=(0, 210), yticks=[0, 100, 200], xlabel="s")
    _plain(axis)
    _save(figure, path)


def _figure(height: float, title: str, below: str) -> Figure:
    figure = Figure(figsize=(8.6, height), facecolor="white")
    figure.text(0.012, 1 - 0.3 / height, title, size=14, weight="bold", color=INK)
    figure.text(0.012, 1 - 0.565 / height, below, size=10, color=QUIET)
    figure.set_label(title)
    return figure


def _save(figure: Figure, path: Path) -> None:
    with mpl.rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none"}):
        metadata = {"Date": None, "Creator": None, "Title": str(figure.get_label())}
        figure.savefig(path, format="svg", metadata=metadata)


def _plain(axis: Axes) -> None:
    axis.spines[["top", "left", "right"]].set_visible(False)
    axis.spines["bottom"].set_color(GRID)
    axis.grid(axis="x", color=GRID, linewidth=1)
    axis.set_axisbelow(True)
    axis.tick_params(length=0, labelsize=10, labelcolor=QUIET)
    axis.xaxis.label.set_color(QUIET)


def _draw_row(figure: Figure, axis: Axes, row: dict[str, Any], counts: Sequence[int]) -> None:
    ours = row["design"] == TITLES["ours"]
    color = OURS if ours else THEIRS
    heights = np.where(np.array(counts) > 0, np.maximum(np.array(counts) / max(counts), FEWEST), 0)
    axis.stairs(heights, WAIT_EDGES, fill=True, color=color)
    axis.axvline(row["p50_ms"] / 1e3, color=INK, linewidth=1.2)
    axis.set(xscale="log", xlim=(WAIT_EDGES[0], WAIT_EDGES[-1]), ylim=(0, 1.45), yticks=[])
    axis.minorticks_off()
    _plain(axis)
    middle = sum(axis.get_position().intervaly) / 2
    style: dict[str, Any] = {"size": 10.5, "color": color if ours else INK, "va": "center"}
    style["weight"] = "bold" if ours else "normal"
    figure.text(0.012, middle, row["design"], **style)
    for right, key in zip(RIGHTS, ("p50_ms", "p99_ms", "max_ms"), strict=True):
        figure.text(right, middle, _time(row[key] / 1e3), ha="right", **style)


def _time(seconds: float) -> str:
    return (
        f"{seconds:.1f} s"
        if seconds >= 0.9995
        else f"{seconds * 1e3:.0f} ms"
        if seconds >= 0.0095
        else f"{seconds * 1e3:.1f} ms"
    )
