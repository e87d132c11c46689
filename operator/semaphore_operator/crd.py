"""Generates the CRD from the models: `python -m semaphore_operator.crd [--check]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from semaphore_operator.models import GROUP, KIND, PLURAL, VERSION, Spec, Status, rule

FILE: Final = Path("crds", f"{PLURAL}.{GROUP}.yaml")
HEADER: Final = "# Generated from operator/semaphore_operator/models.py by `make crd`: change it there.\n"

COLUMNS: Final = (
    # name, type, path, priority (1: with -o wide), description
    ("Limit", "integer", ".spec.limit", 0, "How many slots there are"),
    ("Holders", "integer", ".status.holders", 0, "How many are held"),
    ("Waiting", "integer", ".status.waiting", 0, "How many wait"),
    ("Oldest-Wait", "date", ".status.oldestWaiterSince", 0, "For how long the longest waiting waits"),
    ("Ready", "string", '.status.conditions[?(@.type=="Ready")].status', 0, "Whether Redis has this spec"),
    ("Status", "string", ".status.summary", 0, "The state in one word"),
    ("Lease", "string", ".spec.lease", 1, "After how long a crashed holder's slot is free"),
    ("State", "string", ".spec.state", 1, "Active, Paused or Closed"),
    ("Key", "string", ".status.key", 1, "Beginning of the keys in Redis"),
    ("Throughput", "string", ".status.throughput", 1, "Grants per second"),
    ("Age", "date", ".metadata.creationTimestamp", 0, "Age of the resource"),
)


def definition() -> dict[str, Any]:
    """Give the CustomResourceDefinition."""
    spec = _structural(Spec.model_json_schema(by_alias=True))
    spec["x-kubernetes-validations"] = [
        rule(
            "has(self.name) == has(oldSelf.name) && (!has(self.name) || self.name == oldSelf.name)",
            "name cannot change: create another resource and delete this one",
        )
    ]
    status = _structural(Status.model_json_schema(by_alias=True, mode="validation"))
    status["properties"]["conditions"] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
    schema = {
        "type": "object",
        "description": "A semaphore that any number of processes share, kept in Redis. Clients use <namespace>/<name>.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "plural": PLURAL,
                "singular": KIND.lower(),
                "shortNames": ["dsem"],
                "categories": ["semaphores"],
            },
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {
                        "status": {},
                        "scale": {"specReplicasPath": ".spec.limit", "statusReplicasPath": ".status.holders"},
                    },
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path, "priority": priority, "description": description}
                        for name, kind, path, priority, description in COLUMNS
                    ],
                }
            ],
        },
    }


def _structural(schema: dict[str, Any]) -> dict[str, Any]:
    """Make a JSON schema one that Kubernetes takes: no references, no alternatives, no titles."""
    definitions = schema.pop("$defs", {})

    def convert(node: Any) -> Any:
        if isinstance(node, list):
            return [convert(item) for item in node]
        if not isinstance(node, dict):
            return node
        node = dict(node)
        if reference := node.pop("$ref", None):
            node = {**definitions[reference.rsplit("/", 1)[1]], **node}
        if alternatives := node.pop("anyOf", None):  # an optional value: absent, never null
            [kept] = [option for option in alternatives if option.get("type") != "null"]
            node = {**kept, **node}
        if node.get("type") == "object" and "properties" in node:
            node["properties"] = {name: convert(value) for name, value in node["properties"].items()}
        dropped = {"title", "$defs"} | ({"default"} if node.get("default", "") is None else set())
        return {
            key: value if key == "properties" else convert(value) for key, value in node.items() if key not in dropped
        }

    converted: dict[str, Any] = convert(schema)
    return converted


def text() -> str:
    """Give the CRD as YAML."""
    return HEADER + yaml.safe_dump(definition(), sort_keys=False, width=118, allow_unicode=True)


def main() -> int:
    """Write the CRD, or check that what is there is up to date."""
    parser = argparse.ArgumentParser(prog="python -m semaphore_operator.crd", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=FILE, help=f"where to write it (default: {FILE})")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the file is stale")
    options = parser.parse_args()
    if options.check:
        fresh = options.file.is_file() and options.file.read_text() == text()
        print(f"{options.file} is {'up to date' if fresh else 'stale: run make crd'}", file=sys.stderr)  # noqa: T201
        return 0 if fresh else 1
    options.file.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
