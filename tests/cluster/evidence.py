"""What is to be seen of a semaphore and of the operator: conditions, Events, metrics, alerts."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeAlias

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.cluster.conftest import eventually

from distributed_semaphore.protocol import Counters

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.conftest import Resources
    from tests.cluster.operator_process import OperatorProcess

ALERTS: Final = Path(__file__).parents[2] / "charts/semaphore-operator/files/monitoring/alerts.yaml"
TROUBLE: Final = {each.name for each in fields(Counters)} - {"granted", "released", "left", "waited_ms", "waits"}
"""Counters that stay 0 in the best of times."""
Conditions: TypeAlias = dict[str, tuple[str, str]]

CALM: Final[Conditions] = {
    "Ready": ("True", "Configured"),
    "RedisAvailable": ("True", "Connected"),
    "QueueStuck": ("False", "QueueEmpty"),
    "LongWait": ("False", "QueueEmpty"),
    "HolderOverdue": ("False", "NoMaxHold"),
}
SWEEPING: Final = ("sweep_duration", "sweeps", "status_writes")
"""Metrics of the operator that change in the best of times."""


@dataclass(frozen=True)
class Seen:
    """All that is to be seen of a semaphore."""

    conditions: Conditions
    """Status and reason by type."""
    events: tuple[tuple[str, str], ...]
    """Type and reason, sorted."""
    trouble: dict[str, float]
    """Counters of `TROUBLE` that have counted anything."""
    measured: dict[str, tuple[float, str]]
    """The conditions as metrics: value and reason."""

    @classmethod
    def of(
        cls, conditions: Conditions, events: tuple[tuple[str, str], ...] = (), trouble: dict[str, float] | None = None
    ) -> Self:
        """Give what is expected, where conditions differ from `CALM`."""
        said = CALM | conditions
        measured = {kind: (float(status == "True"), reason) for kind, (status, reason) in said.items()}
        return cls(said, events, trouble or {}, measured)


def look(dsem: Resources, operator: OperatorProcess) -> dict[str, Seen]:
    """Look at all semaphores of a namespace."""
    items = json.loads(dsem("get", "dsem,events.events.k8s.io", "--output=json"))["items"]
    told = [(item["regarding"]["name"], item["type"], item["reason"]) for item in items if item["kind"] == "Event"]
    page = list(text_string_to_metric_families(operator.get("/metrics")[1]))
    measured = [each for family in page for each in family.samples if each.labels.get("namespace") == dsem.namespace]
    seen = {}
    for item in items:
        if item["kind"] == "Event":
            continue
        name = item["metadata"]["name"]
        own = [each for each in measured if each.labels["name"] == name]
        counted = {each.name.removeprefix("semaphore_").removesuffix("_total"): each.value for each in own}
        said = item.get("status", {}).get("conditions", [])
        seen[name] = Seen(
            {each["type"]: (each["status"], each["reason"]) for each in said},
            tuple(sorted((kind, reason) for about, kind, reason in told if about == name)),
            {kind: counted[kind] for kind in TROUBLE if counted.get(kind)},
            {each.labels["type"]: (each.value, each.labels["reason"]) for each in own if "type" in each.labels},
        )
    return seen


def operating(operator: OperatorProcess) -> dict[str, float]:
    """Give what the operator says of itself, where it should stay the same."""
    said = [line for line in operator.get("/metrics")[1].splitlines() if line.startswith("semaphore_operator_")]
    values = dict(line.removeprefix("semaphore_operator_").rsplit(" ", 1) for line in said)
    return {name: float(value) for name, value in values.items() if not name.startswith(SWEEPING)}


def changes(before: dict[str, float], operator: OperatorProcess) -> set[str]:
    """Give the metrics that the operator has of itself and that did not stay the same."""
    return {name for name, value in operating(operator).items() if value != before[name]}


def check_alerts(page: str, expected: set[tuple[str, str]], folder: Path) -> None:
    """Check which alerts of the chart fire, each with its semaphore, when metrics stay like this for an hour."""
    if not shutil.which("promtool"):
        pytest.skip("no promtool on PATH: apt-get install prometheus")
    samples = [line.rsplit(" ", 1) for line in page.splitlines() if line and line[0] != "#"]
    series = [{"series": name, "values": f"{float(value):g}x60"} for name, value in [("up", "1"), *samples]]
    names = [f'{{alertname="{alert}"' + (f', name="{name}"}}' if name else "}") for alert, name in expected]
    firing = {
        "expr": 'count by (alertname, name) (ALERTS{alertstate="firing"})',
        "eval_time": "1h",
        "exp_samples": [{"labels": name, "value": 1} for name in names],
    }
    rules = [{**rule, "annotations": {}} for rule in yaml.safe_load(ALERTS.read_text())]
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "alerts", "rules": rules}]}))
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [firing]}
    (folder / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [test]}))
    command = ["promtool", "test", "rules", str(folder / "tests.yaml")]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stderr


async def until(condition: Callable[[], bool], timeout: float = 30.0) -> None:
    """Wait while the loop goes on."""
    await asyncio.to_thread(eventually, condition, timeout)


async def sweeps(operator: OperatorProcess, number: int = 5) -> None:
    """Let some sweeps go by."""
    before = operator.metrics("semaphore_operator_sweeps_total")[()]
    await until(lambda: operator.metrics("semaphore_operator_sweeps_total")[()] >= before + number)
