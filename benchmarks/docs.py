"""Make the tables and pictures of docs/benchmarks.md from the results files: `python -m benchmarks.docs`.

The page says in its own words what is measured; the figures stand between two marks for each benchmark and are never
written by hand.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from benchmarks.outcome import RESULTS, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DOCS = RESULTS.parent.parent / "docs"
PAGE = DOCS / "benchmarks.md"
PLACE = re.compile(r"(<!-- figures of (?P<name>\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)


def write() -> None:
    """Bring page and pictures up to date."""
    from benchmarks import picture  # noqa: PLC0415  who only renders shall not wait for matplotlib

    PAGE.write_text(render(PAGE.read_text()))
    drawn: dict[str, tuple[Callable[[Outcome, Path], None], str]] = {
        "article": (picture.draw_waits, "article-waits.svg"),
        "handoff": (picture.draw_handoff, "handoff.svg"),
        "occupancy": (picture.draw_occupancy, "occupancy.svg"),
    }
    for name, (draw, file) in drawn.items():
        if (outcome := Outcome.read(name)) and outcome.series:
            draw(outcome, DOCS / file)


def render(page: str) -> str:
    """Put the figures into the places that the page marks for them."""
    return PLACE.sub(lambda place: f"{place[1]}{_figures(place['name'])}{place[3]}", page)


def _figures(name: str) -> str:
    if name == "machine":
        return _machines()
    outcome = Outcome.read(name)
    if outcome is None:
        return f"\nNot measured yet: `python -m benchmarks {name}`.\n\n"
    lines = ["", outcome.load, ""]
    lines += _table([column.heading for column in outcome.columns.values()], outcome.cells())
    if outcome.bars:
        bars = [[bar.promise, bar.measured, "kept" if bar.kept else "**not kept**"] for bar in outcome.bars]
        lines += ["", *_table(["promise", "measured", ""], bars)]
    return "\n".join([*lines, "", ""])


def _machines() -> str:
    """Name what was measured where; all on one machine, if the files are those of one run."""
    measured: dict[str, list[str]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        outcome = Outcome.read(path.stem)
        if outcome:
            measured.setdefault(outcome.machine, []).append(path.stem)
    if len(measured) == 1:
        return f"\nMeasured on {next(iter(measured))}.\n\n"
    lines = [f"- {', '.join(names)}: on {machine}." for machine, names in measured.items()]
    return "\n" + "\n".join(lines) + "\n\n"


def _table(headings: list[str], rows: list[list[str]]) -> list[str]:
    return [
        f"| {' | '.join(headings)} |",
        f"|---|{''.join('---:|' if heading else '---|' for heading in headings[1:])}",
        *(f"| {' | '.join(cells)} |" for cells in rows),
    ]


if __name__ == "__main__":
    write()
