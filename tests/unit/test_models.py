from __future__ import annotations

import pytest
from tests.unit.factories import resource

from distributed_semaphore.protocol import Config, State
from semaphore_operator.models import Resource


def test_a_resource_becomes_the_config_of_its_semaphore():
    read = resource(
        uid="u", generation=7, limit=5, lease="1m30s", state="Paused", maxWaiting=9, maxWait="10m", maxHold="1h",
        perProcessLimit=3,
    )  # fmt: skip
    assert read.config(epoch=4) == Config(
        limit=5, lease_ms=90_000, state=State.PAUSED, max_waiting=9, max_wait_ms=600_000, max_hold_ms=3_600_000,
        per_process_limit=3, uid="u", generation=7, epoch=4,
    )  # fmt: skip


def test_what_is_left_out_has_no_bound():
    config = resource().config(0)
    assert (config.lease_ms, config.max_waiting) == (30_000, 10_000)
    assert (config.max_wait_ms, config.max_hold_ms, config.per_process_limit) == (0, 0, 0)


def test_a_semaphore_is_named_after_its_namespace_and_resource_unless_it_has_a_name_of_its_own():
    assert resource("api").semaphore == "payments/api"
    assert resource("api", name="shared.api").semaphore == "payments/shared.api"
    assert resource("api").keys.config == "sem:{payments/api}:config"


def test_a_resource_does_not_change_once_it_is_read():
    with pytest.raises(ValueError, match="frozen"):
        resource().spec.limit = 3


def test_a_field_that_this_version_does_not_know_is_passed_over():
    assert resource(fieldOfTomorrow=1).spec.limit == 2


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"limit": -1}, "spec.limit: Input should be greater than or equal to 0"),
        ({"limit": "many", "state": "Open"}, "spec.limit: Input should be a valid integer"),
        ({"limit": 1, "lease": "soon"}, "spec: a duration is written like 30s, 1m30s or 2h, not 'soon'"),
        ({"limit": 1, "lease": "2h"}, "spec: lease is 1s to 3600s, not 7200.0s"),
        ({"limit": 1, "alerts": {"longWaitAfter": "5 minutes"}}, "not '5 minutes'"),
        ({"limit": 1, "name": "\x07"}, "no control characters"),
        ({"limit": 1, "name": ["a"], "deletionPolicy": "Retain"}, "spec.name: Input should be a valid string"),
        ({}, "spec.limit: Field required"),
        (None, "spec.limit: Field required"),
        ("limit 5", "spec: dictionary update sequence"),
    ],
)
def test_a_spec_that_the_schema_should_have_refused_is_a_fault_of_one_resource(spec, said):
    metadata = {"namespace": "payments", "name": "api", "uid": "u", "generation": 1, "creationTimestamp": ""}
    read = Resource.read({"metadata": metadata, "spec": spec})
    assert said in read.fault
    assert (read.semaphore, read.spec.limit) == ("payments/api", 0)
    retain = isinstance(spec, dict) and spec.get("deletionPolicy") == "Retain"
    assert (read.spec.deletion_policy == "Retain") is retain


def test_a_resource_whose_spec_cannot_be_used_keeps_its_name():
    metadata = {"namespace": "payments", "name": "api", "uid": "u", "generation": 1, "creationTimestamp": ""}
    assert Resource.read({"metadata": metadata, "spec": {"name": "shared"}}).semaphore == "payments/shared"
