from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib.resources import files

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.factories import NOW, holder, resource, snapshot, waiter

from distributed_semaphore import protocol
from distributed_semaphore.protocol import Counters
from semaphore_operator.conditions import who
from semaphore_operator.metrics import Metrics
from semaphore_operator.record import REPAIRS, Record, Seen
from semaphore_operator.status import conflicting, observed, unobserved

LABELS = {"namespace": "payments", "name": "licensed-api"}


@pytest.fixture
def record() -> Record:
    api = resource()
    waits = (0, 2, 1, *([0] * 18))
    seen = snapshot(
        api,
        holders=(holder(1), holder(2)),
        waiters=(waiter(1, NOW - 42),),
        counters=Counters(granted=3, released=1, waited_ms=4500, waits=waits),
    )
    return Record(seen={api.uid: Seen(api, seen, observed(api, seen, 1.0))}, redis_up=True)


def samples(record: Record) -> dict[tuple, float]:
    registry = CollectorRegistry()
    registry.register(Metrics(record))
    page = generate_latest(registry).decode()
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def value(record: Record, name: str, **labels: str) -> float:
    return samples(record)[(name, *sorted({**LABELS, **labels}.items()))]


def test_a_semaphore_is_seen_from_outside(record):
    assert value(record, "semaphore_limit") == 2
    assert value(record, "semaphore_holders") == 2
    assert value(record, "semaphore_waiting") == 1
    assert value(record, "semaphore_oldest_wait_seconds") == 42
    assert value(record, "semaphore_granted_total") == 3
    assert value(record, "semaphore_condition", type="Ready", reason="Configured") == 1
    assert value(record, "semaphore_condition", type="QueueStuck", reason="Moving") == 0


def test_the_first_in_line_of_a_stuck_queue_is_named():
    api = resource()
    waiters = (waiter(1, NOW - 600), waiter(2, NOW - 500))
    stuck = snapshot(api, holders=(holder(1), holder(2)), waiters=waiters, last_grant=NOW - 700)
    record = Record(seen={api.uid: Seen(api, stuck, observed(api, stuck, 0.0))}, redis_up=True)
    head = who(waiters[0].identity)
    assert value(record, "semaphore_stuck_head_wait_seconds", head=head) == 600


def test_the_head_of_a_moving_queue_is_no_series(record):
    assert not any(name == "semaphore_stuck_head_wait_seconds" for name, *_ in samples(record))


def test_waits_are_a_histogram_of_all_processes(record):
    assert value(record, "semaphore_wait_seconds_bucket", le="0.001") == 0
    assert value(record, "semaphore_wait_seconds_bucket", le="0.002") == 2
    assert value(record, "semaphore_wait_seconds_bucket", le="0.004") == 3
    assert value(record, "semaphore_wait_seconds_count") == 3
    assert value(record, "semaphore_wait_seconds_sum") == 4.5


def test_every_kind_of_repair_has_its_series_from_the_start():
    source = files(protocol).joinpath("lua", "audit.lua").read_text("utf-8")
    assert set(re.findall(r"repaired\('(\w+)'", source)) == set(REPAIRS)
    shown = {labels[0][1] for name, *labels in samples(Record()) if name == "semaphore_operator_repairs_total"}
    assert shown == set(REPAIRS)


def test_a_condition_is_never_true_and_false_at_once():
    """external-secrets#2542: the reason is a label, so an old one must go when it changes."""
    api, now = resource(), datetime(2027, 1, 15, tzinfo=UTC)
    seen = snapshot(api)
    record = Record()
    for each in (
        Seen(api, None, conflicting(api, resource(uid="older"), now)),
        Seen(api, seen, observed(api, seen, 0.0)),
        Seen(api, None, unobserved(api, ConnectionError("refused"), "redis://redis", now)),
        Seen(api, seen, observed(api, seen, 0.0)),
    ):
        record.seen[api.uid] = each
        types = [dict(labels)["type"] for name, *labels in samples(record) if name == "semaphore_condition"]
        assert sorted(types) == sorted(condition.type for condition in each.status.conditions)
        assert len(set(types)) == len(types) > 0


def test_no_series_outlives_its_resource(record):
    record.seen.clear()
    assert not [name for name, *labels in samples(record) if ("name", "licensed-api") in labels]
    assert samples(record)[("semaphore_operator_redis_up",)] == 1
