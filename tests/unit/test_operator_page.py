"""docs/operator.md, compared with the code: its reasons, its alerts, and the words of what it shows as printed."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from semaphore_operator import conditions
from semaphore_operator.models import Condition, HolderStatus, Status, WaiterStatus

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "operator.md").read_text()
ALERTS = ROOT / "charts/semaphore-operator/files/monitoring/alerts.yaml"
TABLE = [line.split("|")[1:-1] for line in TEXT.splitlines() if line.startswith("| ")]


def test_every_reason_has_somebody_who_acts():
    types = {conditions.READY, conditions.REDIS_AVAILABLE, *conditions.ALERTS}
    reasons = {value for name, value in vars(conditions).items() if name.isupper() and isinstance(value, str)}
    rows = [row for row in TABLE if len(row) == 4]
    assert {reason for row in rows for reason in re.findall(r"`(\w+)`", row[1])} == reasons - types
    assert {row[0].strip() for row in rows} - {"", "condition"} == types


def test_every_alert_is_on_the_page():
    names = {rule["alert"] for rule in yaml.safe_load(ALERTS.read_text())}
    assert set(re.findall(r"Semaphore[A-Z]\w+", TEXT)) == names


def test_what_is_shown_as_printed_has_the_fields_of_the_status():
    fields = {
        field.alias
        for model in (Status, HolderStatus, WaiterStatus, Condition)
        for field in model.model_fields.values()
    }
    printed = {re.sub("([A-Z])", r" \1", name).title() for name in fields}
    shown = re.findall(r"^ +([A-Z][A-Za-z ]*?): *(?= .|$)", TEXT, re.MULTILINE)
    assert {"Free At", "Expected Wait", "Reason", "Since"} <= set(shown)
    assert set(shown) <= printed
