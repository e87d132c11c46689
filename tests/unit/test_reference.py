"""docs/reference.md, compared with the code: what it leaves out does not exist for a reader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

import distributed_semaphore
from distributed_semaphore import SemaphoreError
from distributed_semaphore.prometheus import instrument
from semaphore_operator import conditions, events
from semaphore_operator.metrics import Metrics
from semaphore_operator.models import Alerts, Spec, Status
from semaphore_operator.record import Record
from semaphore_operator.settings import parse

TEXT = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
NAMED = set(re.findall(r"`([^`\n]+)`", TEXT))


def constants(module) -> set[str]:
    return {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}


def test_every_condition_reason_and_event_is_explained():
    types = {conditions.READY, conditions.REDIS_AVAILABLE, *conditions.ALERTS}
    assert constants(conditions) - types - NAMED == set()
    assert constants(events) - types - NAMED == set()
    assert all(f"| {kind} |" in TEXT for kind in types)


def test_every_field_is_explained_with_its_default():
    for model in (Spec, Status):
        assert {field.alias for field in model.model_fields.values()} - NAMED <= {"alerts"}
    assert {f"alerts.{field.alias}" for field in Alerts.model_fields.values()} <= NAMED
    for name, field in Spec.model_fields.items():
        if not field.is_required() and field.default and name != "alerts":
            assert f"| `{field.alias}` | {field.default} |" in TEXT


def test_every_metric_is_explained():
    suffixes = {"counter": "_total", "info": "_info"}
    names = {family.name + suffixes.get(family.type, "") for family in Metrics(Record()).collect()}
    registry = CollectorRegistry()
    remove = instrument(registry)
    names |= {family.name + suffixes.get(family.type, "") for family in registry.collect()}
    remove()
    documented = {name for name in NAMED if re.fullmatch(r"semaphore_\w+", name)}
    assert documented == names, "the page names a metric that is not there"


def test_every_option_is_explained(capsys):
    with pytest.raises(SystemExit):
        parse(["--help"])
    said = capsys.readouterr().out
    options = set(re.findall(r"--[a-z-]+", said)) - {"--help", "--version"}
    variables = set(re.findall(r"SEMAPHORE_[A-Z_]+", said))
    assert options | variables <= NAMED
    assert len(options) == len(variables)


def test_every_error_is_explained():
    errors = {
        name
        for name in distributed_semaphore.__all__
        if isinstance(thing := getattr(distributed_semaphore, name), type) and issubclass(thing, SemaphoreError)
    }
    assert errors - NAMED == set()
