"""What nobody should write and somebody has: it is said once, of the one resource concerned, and nothing stops."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.cluster.conftest import CRD, CRDS, eventually

import redis as redis_py
from distributed_semaphore import Semaphore
from distributed_semaphore.protocol import Keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tests.cluster.conftest import Kubectl, Resources, StartOperator

    from distributed_semaphore.testing import RedisServer

QUICK: Final = ("--sweep=0.1", "--patch=0.1")
REFUSED: Final = ("False", "CommandFailed")
PARTS: Final = ("config", "holders", "queue", "clients", "grants", "identities", "counters")


def conditions(dsem: Resources) -> dict[str, dict[str, tuple[str, str]]]:
    """Give status and reason of each condition of each semaphore."""
    listed = {each["metadata"]["name"]: each.get("status", {}) for each in listing(dsem)}
    return {
        name: {each["type"]: (each["status"], each["reason"]) for each in status.get("conditions", [])}
        for name, status in listed.items()
    }


def versions(dsem: Resources, names: Iterable[str]) -> dict[str, str]:
    listed = {each["metadata"]["name"]: each["metadata"]["resourceVersion"] for each in listing(dsem)}
    return {name: listed[name] for name in names}


def listing(dsem: Resources) -> list[Any]:
    items: list[Any] = json.loads(dsem("get", "dsem", "--output=json"))["items"]
    return items


@pytest.fixture
def redis(redis_server: RedisServer) -> Iterator[redis_py.Redis]:
    with redis_py.Redis.from_url(redis_server.url, decode_responses=True) as connection:
        yield connection


def test_garbage_in_the_keys_of_one_semaphore_is_said_of_it_and_stops_no_other(
    dsem: Resources, redis_server: RedisServer, redis: redis_py.Redis, start_operator: StartOperator
) -> None:
    operator = start_operator("--redis", redis_server.url, "--namespaces", dsem.namespace, *QUICK)
    broken = [*PARTS, "tally", "total"]
    manifests = [*broken, "repaired", "sound"]
    for name in manifests:
        dsem.apply(name, limit=2)
    dsem.ready(*manifests)
    prefix = {name: Keys.of(f"{dsem.namespace}/{name}").prefix for name in manifests}
    for part in PARTS:
        redis.set(prefix[part] + part, "written by hand")
    redis.hset(prefix["tally"] + "counters", "tally", "no numbers")
    redis.hset(prefix["total"] + "counters", "expired", "no number")
    # What can be put right is put right, and what cannot be read is passed over.
    redis.hset(prefix["repaired"] + "identities", "nobody", "{no JSON")
    redis.zadd(prefix["repaired"] + "holders", {"no token": 2e12})
    redis.zadd(prefix["repaired"] + "queue", {"no token either": 7.5})
    redis.hset(prefix["repaired"] + "config", mapping={"limit": "many", "lease": "soon", "epoch": "", "reclaim": "x"})

    eventually(lambda: all(conditions(dsem)[name]["RedisAvailable"] == REFUSED for name in broken))
    eventually(lambda: dsem.conditions("repaired")["Ready"] == ("True", "Configured"))
    eventually(lambda: ("Warning", "EntriesRepaired") in [event[:2] for event in dsem.events("repaired")])
    said = versions(dsem, broken)
    dsem("scale", "dsem", "sound", "--replicas=3")
    eventually(lambda: dsem.status("sound")["limit"] == 3)
    Semaphore(f"{dsem.namespace}/sound", redis=redis_server.url).acquire(timeout=5).give_back()
    sweeps = operator.metrics("semaphore_operator_sweeps_total")[()]
    eventually(lambda: operator.metrics("semaphore_operator_sweeps_total")[()] > sweeps + 5)
    assert versions(dsem, broken) == said, "said once"
    assert all(operator.text.count(f"{dsem.namespace}/{name} cannot be read") == 1 for name in broken)
    assert operator.metrics("semaphore_operator_redis_up") == {(): 1}
    for name in broken:
        redis.delete(*(prefix[name] + part for part in PARTS))
    dsem.ready(*broken)


@pytest.fixture
def loose(crd: None, kubectl: Kubectl) -> Iterator[None]:
    """A CRD that lets everything through, until the test takes it back."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything, "status": anything}}}
    version = "/spec/versions/0"
    changes = {"schema": schema, "subresources": {"status": {}}}  # that of scale looks at the limit
    patch = json.dumps([{"op": "replace", "path": f"{version}/{path}", "value": it} for path, it in changes.items()])
    kubectl("patch", "crd", CRD, "--type=json", f"--patch={patch}")
    yield
    strict(kubectl)


def strict(kubectl: Kubectl) -> None:
    kubectl("apply", "--server-side", "--force-conflicts", f"--filename={CRDS}")


def test_a_spec_that_an_older_crd_let_through_is_told_once_and_can_be_corrected_or_deleted(
    loose: None,
    dsem: Resources,
    kubectl: Kubectl,
    redis: redis_py.Redis,
    start_operator: StartOperator,
) -> None:
    bad = {
        "lease": {"limit": 1, "lease": "soon"},
        "limit": {"limit": "many"},
        "empty": {},
        "alerts": {"limit": 1, "alerts": {"queueStuckAfter": "5 minutes"}},
    }

    def create_bad() -> bool:
        for name, spec in bad.items():
            dsem.apply(name, **spec)
        return True

    eventually(lambda: succeeds(create_bad))  # the API server takes a moment to forget the old schema
    dsem.apply("sound", limit=2)
    strict(kubectl)
    address = f"redis://127.0.0.1:{redis.connection_pool.connection_kwargs['port']}"
    operator = start_operator("--redis", address, "--namespaces", dsem.namespace, *QUICK)
    dsem.ready("sound")
    eventually(lambda: all(conditions(dsem)[name] == {"Ready": ("False", "InvalidSpec")} for name in bad))
    for name in bad:
        eventually(lambda name=name: [event[1] for event in dsem.events(name)] == ["InvalidSpec"])
    assert "not 'soon'. Correct it (kubectl edit)" in dsem.message("lease", "Ready")
    said = versions(dsem, bad)
    sweeps = operator.metrics("semaphore_operator_sweeps_total")[()]
    eventually(lambda: operator.metrics("semaphore_operator_sweeps_total")[()] > sweeps + 5)
    assert versions(dsem, bad) == said, "said once"
    assert set(operator.metrics("semaphore_operator_errors_total").values()) == {0}
    assert operator.metrics("semaphore_condition")[("lease", dsem.namespace, "InvalidSpec", "Ready")] == 0
    dsem.apply("lease", limit=1, lease="5s")
    dsem.ready("lease")
    dsem("delete", "dsem", "limit", "empty", "alerts", "--timeout=10s")
    left = {Keys.of(f"{dsem.namespace}/{name}").config for name in ("lease", "sound")}
    assert set(redis.keys(f"sem:{{{dsem.namespace}/*:config")) == left


def succeeds(action: Callable[[], bool]) -> bool:
    try:
        return action()
    except AssertionError:
        return False
