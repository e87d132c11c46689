"""The page of scenarios names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\|.*\| `(tests/[\w/]+\.py)::(test_\w+)` \|$")


def test_every_row_names_a_test_that_exists():
    rows = [line for line in (ROOT / "docs/scenarios.md").read_text().splitlines() if line.startswith("| ")]
    rows = [line for line in rows if not line.endswith("| test |")]
    named = [match.groups() for line in rows if (match := ROW.match(line))]
    assert len(named) == len(rows) > 40
    missing = [f"{module}::{test}" for module, test in named if test not in functions_of(module)]
    assert missing == []


def functions_of(module: str) -> set[str]:
    tree = ast.parse((ROOT / module).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
