"""The resource, as the API server guards it and kubectl shows it; no operator runs here."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.cluster.conftest import Resources

if TYPE_CHECKING:
    from tests.cluster.conftest import Kubectl

DURATION = "is a duration from {}, written like 30s, 1m30s or 1h"
LEASE = "lease " + DURATION.format("1s to 1h")
STATES = 'supported values: "Active", "Paused", "Closed"'

WRONG: list[tuple[Any, str]] = [
    ({}, "spec.limit: Required value"),
    ({"limit": -1}, "spec.limit in body should be greater than or equal to 0"),
    ({"limit": 100_001}, "spec.limit in body should be less than or equal to 100000"),
    ({"limit": "five"}, 'spec.limit in body must be of type integer: "string"'),
    ({"limit": 2.5}, "must be of type integer with format int32 in spec.limit"),
    ({"limit": 5, "lease": "5 minutes"}, LEASE),
    ({"limit": 5, "lease": "500ms"}, LEASE),
    ({"limit": 5, "lease": "61m"}, LEASE),
    ({"limit": 5, "lease": "-1s"}, LEASE),
    ({"limit": 5, "lease": "1.5s"}, LEASE),
    ({"limit": 5, "lease": ""}, LEASE),
    ({"limit": 5, "lease": 30}, 'spec.lease in body must be of type string: "integer"'),
    ({"limit": 5, "state": "active"}, STATES),
    ({"limit": 5, "deletionPolicy": "Keep"}, 'supported values: "Delete", "Retain"'),
    ({"limit": 5, "maxWaiting": -1}, "spec.maxWaiting in body should be greater than or equal to 0"),
    ({"limit": 5, "maxWaiting": 1_000_000}, "spec.maxWaiting in body should be less than or equal to 100000"),
    ({"limit": 5, "maxWait": "0s"}, "maxWait " + DURATION.format("1s to 24h")),
    ({"limit": 5, "maxHold": "25h"}, "maxHold " + DURATION.format("1s to 24h")),
    ({"limit": 5, "perProcessLimit": 0}, "spec.perProcessLimit in body should be greater than or equal to 1"),
    ({"limit": 5, "alerts": {"queueStuckAfter": "soon"}}, "queueStuckAfter " + DURATION.format("1s to 24h")),
    ({"limit": 5, "alerts": {"longWaitAfter": "2d"}}, "longWaitAfter " + DURATION.format("1s to 24h")),
    ({"limit": 5, "name": "Licensed_API"}, "name has lower case letters, digits and '-', in parts that '.' separates"),
    ({"limit": 5, "name": "a..b"}, "each part begins and ends with a letter or digit"),
    ({"limit": 5, "name": "a" * 254}, "Too long: may not be more than 253"),
    ({"limits": 5}, 'unknown field "spec.limits"'),
    ({"limit": 5, "alerts": {"stuckAfter": "1m"}}, 'unknown field "spec.alerts.stuckAfter"'),
    (None, "spec: Required value"),
]


@pytest.fixture(scope="module")
def namespace(kubectl: Kubectl) -> str:
    """One for all tests here, which need no more of each other's absence than names of their own."""
    name = f"test-{secrets.token_hex(4)}"
    kubectl("create", "namespace", name)
    return name


@pytest.fixture(scope="module")
def dsem(crd: None, kubectl: Kubectl, namespace: str) -> Resources:
    return Resources(kubectl, namespace)


@pytest.mark.parametrize(("spec", "allowed"), WRONG, ids=[json.dumps(spec)[:60] for spec, _ in WRONG])
def test_a_wrong_manifest_is_refused_with_what_is_allowed(dsem: Resources, spec: Any, allowed: str) -> None:
    manifest = {
        "apiVersion": "semaphores.dev/v1alpha1",
        "kind": "DistributedSemaphore",
        "metadata": {"name": "wrong"},
        **({} if spec is None else {"spec": spec}),
    }
    with pytest.raises(AssertionError) as refused:
        dsem("apply", "--filename=-", stdin=json.dumps(manifest))
    assert allowed in str(refused.value)


def test_a_refused_lease_gets_one_message_and_not_three(dsem: Resources) -> None:
    with pytest.raises(AssertionError) as refused:
        dsem.apply("wrong", limit=5, lease="5 minutes")
    assert str(refused.value).count("spec.lease") == 1


@pytest.mark.parametrize("lease", ["1s", "90s", "2m", "1m30s", "1500ms", "1h", "59m59s1000ms"])
def test_durations_are_written_as_kubernetes_writes_them(dsem: Resources, lease: str) -> None:
    dsem.apply("good", limit=5, lease=lease)
    assert dsem.get("good")["spec"]["lease"] == lease


def test_defaults_are_written_in(dsem: Resources) -> None:
    dsem.apply("plain", limit=0)
    assert dsem.get("plain")["spec"] == {
        "limit": 0,
        "lease": "30s",
        "state": "Active",
        "maxWaiting": 10_000,
        "deletionPolicy": "Delete",
        "alerts": {"queueStuckAfter": "2m", "longWaitAfter": "5m"},
    }


@pytest.mark.parametrize(("before", "after"), [("a", "b"), ("a", None), (None, "a")])
def test_the_name_cannot_change(dsem: Resources, before: str | None, after: str | None) -> None:
    """strimzi#12132: what is renamed has two owners for a while."""
    name = f"fixed-{before}-{after}".lower()
    dsem.apply(name, limit=5, **({"name": before} if before else {}))
    patch = [
        {"op": "replace" if before and after else "add" if after else "remove", "path": "/spec/name", "value": after}
    ]
    with pytest.raises(AssertionError, match="name cannot change: create another resource and delete this one"):
        dsem("patch", "dsem", name, "--type=json", f"--patch={json.dumps(patch)}")
    dsem.apply(name, limit=6, **({"name": before} if before else {}))
    assert dsem.get(name)["spec"]["limit"] == 6


def test_kubectl_scale_sets_the_limit_within_its_bounds(dsem: Resources) -> None:
    dsem.apply("scaled", limit=5)
    dsem("scale", "dsem", "scaled", "--replicas=8")
    assert dsem.get("scaled")["spec"]["limit"] == 8
    with pytest.raises(AssertionError, match="should be less than or equal to 100000"):
        dsem("scale", "dsem", "scaled", "--replicas=100001")


def test_kubectl_get_shows_the_columns_that_matter(dsem: Resources) -> None:
    dsem.apply("shown", limit=5)
    conditions = [
        {"type": "Ready", "status": "True", "reason": "Configured", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    ]
    status = {
        "holders": 5, "waiting": 25, "oldestWaiterSince": "2026-01-01T00:00:00Z", "summary": "Active",
        "key": "sem:{x}:", "throughput": "4.0/s", "conditions": conditions,
    }  # fmt: skip
    dsem("patch", "dsem", "shown", "--subresource=status", "--type=merge", f"--patch={json.dumps({'status': status})}")
    header, row = dsem("get", "dsem", "shown").splitlines()
    assert header.split() == ["NAME", "LIMIT", "HOLDERS", "WAITING", "OLDEST-WAIT", "READY", "STATUS", "AGE"]
    name, limit, holders, waiting, oldest, ready, word, _ = row.split()
    assert (name, limit, holders, waiting, ready, word) == ("shown", "5", "5", "25", "True", "Active")
    assert oldest.endswith(("d", "y"))  # an age, not a date
    wide, row = dsem("get", "dsem", "shown", "--output=wide").splitlines()
    assert wide.split() == [*header.split()[:-1], "LEASE", "STATE", "KEY", "THROUGHPUT", "AGE"]
    assert row.split()[7:11] == ["30s", "Active", "sem:{x}:", "4.0/s"]
    assert "/shown" in dsem("get", "semaphores", "--output=name")  # the category
    assert json.loads(dsem("get", "--raw", f"/apis/semaphores.dev/v1alpha1/namespaces/{dsem.namespace}"
                           "/distributedsemaphores/shown/scale"))["status"]["replicas"] == 5  # fmt: skip


def test_the_status_takes_every_field_that_the_operator_writes(dsem: Resources) -> None:
    """kopf#574: a field that is not in the schema vanishes without a word."""
    dsem.apply("full", limit=1)
    party = {
        "pod": "p",
        "namespace": "n",
        "node": "m",
        "app": "a",
        "host": "h",
        "pid": "7",
        "since": "2026-01-01T00:00:00Z",
    }
    condition = {
        "type": "QueueStuck", "status": "Unknown", "reason": "R", "message": "m", "observedGeneration": 3,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    status = {
        "observedGeneration": 3, "key": "k", "summary": "Active", "limit": 1, "leaseSeconds": 1.5, "holders": 1,
        "waiting": 1, "oldestWaiterSince": "2026-01-01T00:00:00Z", "lastGrantTime": "2026-01-01T00:00:00Z",
        "throughput": "1.0/s", "heldBy": [{**party, "weight": 2, "fence": 1_800_000_000_000_000}],
        "waitingLine": [{**party, "weight": 1, "position": 1, "priority": -3}], "conditions": [condition],
    }  # fmt: skip
    dsem("patch", "dsem", "full", "--subresource=status", "--type=merge", f"--patch={json.dumps({'status': status})}")
    assert dsem.status("full") == status


def test_kubectl_explain_teaches(kubectl: Kubectl, dsem: Resources) -> None:
    said = kubectl("explain", "dsem.spec")
    assert "KIND:       DistributedSemaphore" in said
    assert "limit	<integer> -required-" in said
    assert "enum: Active, Paused, Closed" in said
    assert "A crashed holder's slot is free again after this long, 1s to 1h." in " ".join(said.split())
    fields = yaml.safe_load(dsem("get", "crd", "distributedsemaphores.semaphores.dev", "--output=yaml"))
    spec = fields["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for field in spec["properties"]:
        assert f"\n  {field}	<" in said
