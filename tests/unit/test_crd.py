from __future__ import annotations

from pathlib import Path

import yaml

from semaphore_operator import crd
from semaphore_operator.models import Spec, Status

FILE = Path(__file__).parents[2] / crd.FILE


def schema() -> dict:
    [version] = crd.definition()["spec"]["versions"]
    return version["schema"]["openAPIV3Schema"]


def nodes(node):
    """Give every schema below one, with its name."""
    for name, child in node.get("properties", {}).items():
        yield name, child
        yield from nodes(child)
        if "items" in child:
            yield from nodes(child["items"])


def test_the_crd_in_the_repository_is_what_the_models_generate():
    assert FILE.read_text() == crd.text(), "run `make crd`"
    assert yaml.safe_load(FILE.read_text()) == crd.definition()


def test_every_field_has_a_description_and_nothing_that_kubernetes_refuses():
    for part in ("spec", "status"):
        for name, node in nodes(schema()["properties"][part]):
            assert node.get("description"), f"{part}: {name} has no description"
            assert not {"$ref", "anyOf", "title", "$defs"} & node.keys(), name
            assert "type" in node, name


def test_every_field_of_the_models_is_in_the_schema():
    for part, model in (("spec", Spec), ("status", Status)):
        fields = {field.alias for field in model.model_fields.values()}
        assert fields == schema()["properties"][part]["properties"].keys()


def test_defaults_are_written_in_and_only_the_limit_is_asked_for():
    spec = schema()["properties"]["spec"]
    assert spec["required"] == ["limit"]
    defaults = {name: node["default"] for name, node in spec["properties"].items() if "default" in node}
    assert defaults == {
        "lease": "30s",
        "state": "Active",
        "maxWaiting": 10_000,
        "deletionPolicy": "Delete",
        "alerts": {"queueStuckAfter": "2m", "longWaitAfter": "5m"},
    }
