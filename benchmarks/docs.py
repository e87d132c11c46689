"""Make the tables and pictures of docs/benchmarks.md from the results files: `python -m benchmarks.docs`.

The page says in its own words what is measured; the figures stand between two marks for each benchmark and are never
written by hand.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from benchmarks.outcome import BUSY, RESULTS, Outcome

DOCS = RESULTS.parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"
PLACE = re.compile(r"(<!-- figures of (?P<name>\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


class Drawing(NamedTuple):
    """A picture of a benchmark."""

    function: str
    """Of the module `picture`, which is imported only to draw."""
    file: str
    text: str
    """What stands for the picture where it cannot be seen."""


DRAWINGS = {
    "article": Drawing("draw_waits", "article-waits.svg", "How long the jobs of each design waited"),
    "handoff": Drawing("draw_handoff", "handoff.svg", "From a release in one process to the holder in another"),
    "depth": Drawing("draw_depth", "depth.svg", "Commands of a release over the length of the queue"),
    "occupancy": Drawing("draw_occupancy", "occupancy.svg", "How many of 200 slots are held over time"),
    "peers": Drawing("draw_waits", "peers.svg", "How long the jobs of each library waited"),
}


def write() -> None:
    """Bring page and pictures up to date."""
    from benchmarks import picture  # noqa: PLC0415  who only renders shall not wait for matplotlib

    for name, drawing in DRAWINGS.items():
        if (outcome := Outcome.read(name)) and outcome.series:
            getattr(picture, drawing.function)(outcome, DOCS / drawing.file)
    PAGE.write_text(render(PAGE.read_text()))


def render(page: str) -> str:
    """Put the figures into the places that the page marks for them."""
    return PLACE.sub(lambda place: "\n".join([place[1], *_lines(place["name"]), "", place[3]]), page)


def _lines(name: str) -> list[str]:
    if name == "machine":
        return _machines()
    outcome = Outcome.read(name)
    if outcome is None:
        return [f"Not measured yet: `python -m benchmarks {name}`."]
    used = f" Other programs used {outcome.busy:.0%} of the CPUs, so this is worse than it need be."
    lines = [
        outcome.load + (used if outcome.busy > BUSY else ""),
        "",
        *_table([column.heading for column in outcome.columns.values()], outcome.cells()),
    ]
    if (drawing := DRAWINGS.get(name)) and (DOCS / drawing.file).exists():
        lines = [f"![{drawing.text}]({drawing.file})", "", *lines]
    if outcome.bars:
        bars = [[bar.promise, bar.measured, "kept" if bar.kept else "**not kept**"] for bar in outcome.bars]
        lines += ["", *_table(["promise", "measured", ""], bars)]
    return lines


def _machines() -> list[str]:
    """Name what was measured where; all on one machine, if the files are those of one run."""
    measured: dict[str, list[str]] = {}
    for name in (path.stem for path in sorted(RESULTS.glob("*.json"))):
        if outcome := Outcome.read(name):
            measured.setdefault(outcome.machine, []).append(name)
    if len(measured) == 1:
        return [f"Measured on {next(iter(measured))}."]
    return [f"- {', '.join(names)}: on {machine}." for machine, names in measured.items()]


def _table(headings: list[str], rows: list[list[str]]) -> list[str]:
    return [
        f"| {' | '.join(headings)} |",
        f"|---|{''.join('---:|' if heading else '---|' for heading in headings[1:])}",
        *(f"| {' | '.join(cells)} |" for cells in rows),
    ]


if __name__ == "__main__":
    write()
