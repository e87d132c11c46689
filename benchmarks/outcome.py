"""What a benchmark finds: a table, the bars it is held against, and series for pictures; one JSON file each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

BUSY = 0.1
"""From which part of the CPUs' time on, used by others, a machine is not idle."""
RESULTS = Path(__file__).resolve().parent / "results"


class Column(NamedTuple):
    """A column of a table."""

    heading: str
    places: int = 0
    """Digits after the point."""


class Bar(NamedTuple):
    """One promise, and what was measured."""

    promise: str
    measured: str
    kept: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one benchmark, from which terminal, page and pictures are made alike."""

    load: str
    """What was run, in a sentence or two."""
    columns: dict[str, Column]
    """The figures that tables show, by their keys in the rows, which carry the unit: `p50_ms`."""
    rows: list[dict[str, Any]]
    bars: list[Bar] = field(default_factory=list)
    series: dict[str, Any] = field(default_factory=dict)
    """What pictures are drawn from."""
    machine: str = ""
    """Processor, system and versions that the figures belong to."""
    busy: float = 0.0
    """Which part of the CPUs' time other programs used just before; figures of a busy machine are worse."""

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return all(bar.kept for bar in self.bars)

    def cells(self) -> list[list[str]]:
        """Give the table's body as text."""
        return [[_text(row.get(key), column.places) for key, column in self.columns.items()] for row in self.rows]

    def write(self, name: str) -> Path:
        """Write the file of this name into the folder of results."""
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"{name}.json"
        content = {"benchmark": name, **asdict(self)}
        series = json.dumps(content.pop("series"), ensure_ascii=False)  # thousands of numbers: in one line
        figures = json.dumps(content, indent=1, ensure_ascii=False).removesuffix("\n}")
        path.write_text(f'{figures},\n "series": {series}\n}}\n')
        return path

    @classmethod
    def read(cls, name: str) -> Outcome | None:
        """Read a file that `write` has written; None if there is none."""
        path = RESULTS / f"{name}.json"
        if not path.exists():
            return None
        content = json.loads(path.read_text())
        return cls(
            load=content["load"],
            columns={key: Column(*column) for key, column in content["columns"].items()},
            rows=content["rows"],
            bars=[Bar(*bar) for bar in content["bars"]],
            series=content["series"],
            machine=content["machine"],
            busy=content.get("busy", 0.0),
        )


def at_most(promise: str, value: float, most: float, unit: str = "", places: int = 2) -> Bar:
    """Hold a figure against the most that it may be."""
    return Bar(promise, f"{value:,.{places}f}{unit}", value <= most)


def at_least(promise: str, value: float, least: float, unit: str = "", places: int = 2) -> Bar:
    """Hold a figure against the least that it may be."""
    return Bar(promise, f"{value:,.{places}f}{unit}", value >= least)


def _text(value: object, places: int) -> str:
    if value is None:
        return "never"
    if isinstance(value, int | float):
        return f"{value:,.{places}f}"
    return str(value)
