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


def test_a_spec_that_the_schema_would_refuse_is_refused_here_too():
    with pytest.raises(ValueError, match="limit"):
        Resource.read({"metadata": resource().model_dump() | {"creationTimestamp": ""}, "spec": {"limit": -1}})
