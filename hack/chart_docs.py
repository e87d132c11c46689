"""Bring the charts up to date with what they repeat: `python -m chart_docs [--check]`.

- The table of values in each chart's README.md, from the `# --` comments of its values.yaml.
- The operator chart's copy of the CRD: a chart holds only files of its own folder.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[1]
CHARTS: Final = ROOT / "charts"
CRDS: Final = ROOT / "crds"
BEGIN: Final = "<!-- values: from values.yaml, by `make charts` -->\n"
END: Final = "<!-- end of values -->\n"
KEY: Final = re.compile(r"^(?P<indent> *)(?P<name>[A-Za-z0-9]+):")


@dataclass(frozen=True, slots=True)
class Value:
    """A documented value of a chart."""

    path: str
    default: Any
    text: str


def documented(values_yaml: str) -> list[Value]:
    """Give the values that have a `# --` comment, in the order of the file."""
    found: list[Value] = []
    parents: list[tuple[int, str]] = []
    comment: list[str] = []
    for line in values_yaml.splitlines():
        text = line.strip()
        if text.startswith("# --"):
            comment = [text.removeprefix("# --").strip()]
        elif text.startswith("#") and comment:
            comment.append(text.removeprefix("#").strip())
        elif match := KEY.match(line):
            indent = len(match["indent"])
            parents = [*(parent for parent in parents if parent[0] < indent), (indent, match["name"])]
            path = [name for _, name in parents]
            if comment:
                found.append(Value(".".join(path), _at(yaml.safe_load(values_yaml), path), " ".join(comment)))
            comment = []
        else:
            comment = []
    return found


def _at(values: Any, path: list[str]) -> Any:
    for name in path:
        values = values[name]
    return values


def table(values: list[Value]) -> str:
    """Give the values as a Markdown table."""
    rows = [f"| `{value.path}` | `{json.dumps(value.default)}` | {value.text} |" for value in values]
    return "\n".join(["| value | default | meaning |", "|---|---|---|", *rows]) + "\n"


def current() -> Iterator[tuple[Path, str]]:
    """Give each file that repeats something, with what it should hold."""
    for readme in sorted(CHARTS.glob("*/README.md")):
        before, _, rest = readme.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        made = table(documented((readme.parent / "values.yaml").read_text()))
        yield readme, f"{before}{BEGIN}\n{made}\n{END}{after}"
    for crd in sorted(CRDS.glob("*.yaml")):
        yield CHARTS / "semaphore-operator" / "files" / crd.name, crd.read_text()


def main() -> int:
    """Write what is stale, or only say so."""
    parser = argparse.ArgumentParser(prog="python -m chart_docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is stale")
    check = parser.parse_args().check
    stale = [(path, text) for path, text in current() if not path.is_file() or path.read_text() != text]
    for path, text in stale:
        print(
            f"{path.relative_to(ROOT)} {'is stale: run make charts' if check else 'brought up to date'}",
            file=sys.stderr,
        )
        if not check:
            path.write_text(text)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
