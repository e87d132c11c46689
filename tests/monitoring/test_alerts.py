"""Each alert of the chart, alone: promtool says when it fires and when not."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.cluster.releases import OPERATOR, ROOT, make_helm

if TYPE_CHECKING:
    from pathlib import Path

SEMAPHORE = {"namespace": "payments", "name": "licensed-api"}


@dataclass(frozen=True)
class Case:
    """Series as promtool writes them, with a value each minute for ten minutes."""

    fires: dict[str, str]
    quiet: list[dict[str, str]]
    labels: dict[str, str]


def condition(kind: str, reason: str) -> str:
    return f'semaphore_condition{{namespace="payments", name="licensed-api", type="{kind}", reason="{reason}"}}'


BUILD = 'semaphore_operator_build_info{version="1"}'
LEADER = "semaphore_operator_leader"
REDIS, KUBERNETES = "semaphore_operator_redis_up", "semaphore_operator_kubernetes_up"
CASES = {
    "SemaphoreQueueStuck": Case(
        fires={condition("QueueStuck", "HoldersNotReleasing"): "1x20"},
        quiet=[
            {condition("QueueStuck", "Moving"): "0x20"},
            {condition("QueueStuck", "Paused"): "1x20"},
            {condition("QueueStuck", "LimitZero"): "1x20"},
            {condition("QueueStuck", "RedisUnavailable"): "0x20"},
        ],
        labels={**SEMAPHORE, "severity": "critical"},
    ),
    "SemaphoreLongWait": Case(
        fires={condition("LongWait", "LimitTooLow"): "1x20"},
        quiet=[{condition("LongWait", "ShortWaits"): "0x20"}],
        labels={**SEMAPHORE, "severity": "warning"},
    ),
    "SemaphoreHolderOverdue": Case(
        fires={condition("HolderOverdue", "MaxHoldExceeded"): "1x20"},
        quiet=[{condition("HolderOverdue", "WithinMaxHold"): "0x20"}],
        labels={**SEMAPHORE, "severity": "warning"},
    ),
    "SemaphoreNotReady": Case(
        fires={condition("Ready", "NotWritten"): "0x20"},
        quiet=[
            {condition("Ready", "Configured"): "1x20"},
            # Redis being away is one alert, not one a semaphore.
            {condition("Ready", "RedisUnavailable"): "0x20", condition("RedisAvailable", "ConnectionFailed"): "0x20"},
            {condition("RedisAvailable", "Connected"): "1x20"},
            # What passes within its five minutes.
            {condition("Ready", "NotWritten"): "_x7 0x2 stale", condition("Ready", "Configured"): "1x6 stale"},
        ],
        labels={**SEMAPHORE, "reason": "NotWritten", "severity": "warning"},
    ),
    "SemaphoreRedisUnavailable": Case(
        fires={f'{REDIS}{{pod="a"}}': "0x20", f'{REDIS}{{pod="b"}}': "0x20"},
        quiet=[{f'{REDIS}{{pod="a"}}': "0x20", f'{REDIS}{{pod="b"}}': "1x20"}, {REDIS: "1x8 0 1x10"}],
        labels={"severity": "critical"},
    ),
    "SemaphoreKubernetesUnavailable": Case(
        fires={KUBERNETES: "0x20"},
        quiet=[{KUBERNETES: "1x20"}, {KUBERNETES: "1x6 0x20"}],
        labels={"severity": "warning"},
    ),
    "SemaphoreOperatorWithoutLeader": Case(
        fires={f'{LEADER}{{pod="a"}}': "0x20", f'{LEADER}{{pod="b"}}': "0x20"},
        quiet=[{f'{LEADER}{{pod="a"}}': "0x20", f'{LEADER}{{pod="b"}}': "1x20"}, {LEADER: "1x8 0 1x10"}],
        labels={"severity": "warning"},
    ),
    "SemaphoreOperatorAbsent": Case(
        fires={"up": "0x20"},
        quiet=[{BUILD: "1x20"}],
        labels={"severity": "warning"},
    ),
}


def promtool(*arguments: str | Path) -> str:
    answer = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def test_every_alert_is_tested_and_has_a_runbook(rendered: dict[str, Any]) -> None:
    [group] = rendered["PrometheusRule"]["spec"]["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert names == list(CASES)
    headings = [line[3:] for line in (ROOT / "docs" / "runbooks.md").read_text().splitlines() if line[:3] == "## "]
    assert headings == names
    for rule in group["rules"]:
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"


def test_the_rules_are_rules(rendered: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rendered["PrometheusRule"]["spec"]))
    said = promtool("check", "rules", "--lint=all", "--lint-fatal", tmp_path / "rules.yaml")
    assert f"SUCCESS: {len(CASES)} rules found" in said


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_and_does_not_fire(rendered: dict[str, Any], tmp_path: Path, alert: str) -> None:
    """kueue#6496, #10897: a queue that moves, and one that is paused by its spec, are no alert."""
    [group] = rendered["PrometheusRule"]["spec"]["groups"]
    rules = [{**rule, "annotations": {}} for rule in group["rules"]]  # what they say is tested on a real Prometheus
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{**group, "rules": rules}]}))
    case = CASES[alert]
    staged = [(case.fires, [{"exp_labels": case.labels}]), *((series, []) for series in case.quiet)]
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": [{"eval_time": "10m", "alertname": alert, "exp_alerts": expected}],
        }
        for series, expected in staged
    ]
    (tmp_path / "tests.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests})
    )
    assert "SUCCESS" in promtool("test", "rules", tmp_path / "tests.yaml")


def test_a_single_alert_is_changed_by_values(tmp_path: Path) -> None:
    helm = make_helm(tmp_path, tmp_path / "none")
    changes = {
        "SemaphoreLongWait": {"enabled": False},
        "SemaphoreNotReady": {"for": "1h", "severity": "page", "labels": {"team": "platform"}},
    }
    rules = {"enabled": True, "alerts": changes, "runbookUrl": "https://wiki.example.com/semaphores"}
    values = {"redis": {"url": "redis://redis"}, "monitoring": {"rules": rules}}
    made = yaml.safe_load_all(helm("template", "x", OPERATOR, values=values))
    [rule] = [each for each in made if each and each["kind"] == "PrometheusRule"]
    found = {each["alert"]: each for each in rule["spec"]["groups"][0]["rules"]}
    assert found.keys() == CASES.keys() - {"SemaphoreLongWait"}
    changed = found["SemaphoreNotReady"]
    assert (changed["for"], changed["labels"]) == ("1h", {"severity": "page", "team": "platform"})
    assert changed["annotations"]["runbook_url"] == "https://wiki.example.com/semaphores#semaphorenotready"
    assert found["SemaphoreQueueStuck"]["labels"] == {"severity": "critical"}
