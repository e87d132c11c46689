from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.unit.factories import NOW, holder, resource, snapshot, waiter

from distributed_semaphore.protocol import State
from semaphore_operator import conditions
from semaphore_operator.conditions import (
    Verdict,
    conflict,
    free_at,
    holder_overdue,
    long_wait,
    queue_stuck,
    ready,
    settle,
    who,
)
from semaphore_operator.models import Status
from semaphore_operator.status import dump, observed

API = resource(alerts={"queueStuckAfter": "1m"})
LONG_AGO, JUST_NOW = NOW - 600, NOW - 10
TWO = (holder(1, LONG_AGO), holder(2, LONG_AGO))


@pytest.mark.parametrize(
    ("of", "seen", "status", "reason"),
    [
        pytest.param(API, {"holders": TWO}, False, "QueueEmpty", id="nobody waits"),
        pytest.param(
            API, {"holders": TWO, "waiters": (waiter(1, JUST_NOW),)}, False, "Moving", id="waits not long yet"
        ),
        pytest.param(
            API,
            {"holders": (holder(1, JUST_NOW), holder(2, LONG_AGO)), "waiters": (waiter(1, LONG_AGO),)},
            False,
            "Moving",
            id="long but moving",
        ),
        pytest.param(
            API, {"holders": TWO, "waiters": (waiter(1, LONG_AGO),)}, True, "HoldersNotReleasing", id="wedged holders"
        ),
        pytest.param(
            API,
            {"holders": TWO[:1], "waiters": (waiter(1, LONG_AGO, weight=2),)},
            True,
            "HeadTooHeavy",
            id="the head needs more than is free",
        ),
        pytest.param(API, {"holders": TWO[:1], "waiters": (waiter(1, LONG_AGO),)}, True, "SlotsIdle", id="our fault"),
        pytest.param(
            resource(limit=0, alerts={"queueStuckAfter": "1m"}),
            {"waiters": (waiter(1, LONG_AGO),)},
            True,
            "LimitZero",
            id="limit 0",
        ),
        pytest.param(
            resource(state="Paused", alerts={"queueStuckAfter": "1m"}),
            {"waiters": (waiter(1, LONG_AGO),)},
            True,
            "Paused",
            id="paused",
        ),
        pytest.param(
            API,
            {"holders": TWO[:1], "waiters": (waiter(1, LONG_AGO),), "reclaim_until": NOW + 5},
            False,
            "Reclaiming",
            id="slots are being put back after a loss",
        ),
    ],
)
def test_a_queue_is_stuck_when_somebody_waits_and_nothing_is_granted(of, seen, status, reason):
    verdict = queue_stuck(of, snapshot(of, **seen))
    assert (verdict.status, verdict.reason) == (status, reason)


def test_a_stuck_queue_names_cause_head_and_oldest_holder():
    verdict = queue_stuck(API, snapshot(API, holders=TWO, waiters=(waiter(1, LONG_AGO), waiter(2, JUST_NOW))))
    assert "nothing was granted since 2027-01-15T07:50:00Z" in verdict.message
    assert "are held, and none is given back, longest by pod payments/holder-1" in verdict.message
    assert "First in line: pod payments/waiter-1, since 2027-01-15T07:50:00Z" in verdict.message
    assert "or end it: its slots are free again within 30s" in verdict.message


def test_the_message_stays_the_same_while_nothing_happens():
    """Else a stuck semaphore would be written every few seconds for as long as it is stuck."""
    seen = {"holders": TWO, "waiters": (waiter(1, LONG_AGO),)}
    assert queue_stuck(API, snapshot(API, **seen)) == queue_stuck(API, snapshot(API, **seen, server_time=NOW + 3600))


def test_the_wait_itself_must_be_that_long():
    """A semaphore that nobody has used since yesterday is not stuck when somebody comes and waits for a moment."""
    yesterday = (holder(1, NOW - 86_400), holder(2, NOW - 86_400))
    assert queue_stuck(API, snapshot(API, holders=yesterday, waiters=(waiter(1, NOW - 59),))).status is False
    assert queue_stuck(API, snapshot(API, holders=yesterday, waiters=(waiter(1, NOW - 61),))).status is True


PATIENT = resource(alerts={"queueStuckAfter": "1m", "longWaitAfter": "2m"})
LONG = {"type": "LongWait", "status": "True", "reason": "LimitTooLow", "lastTransitionTime": "2027-01-01T00:00:00Z"}
ALERTED = {"conditions": [LONG]}
MOVES = {"holders": (holder(1, JUST_NOW), holder(2, LONG_AGO))}


def long_waits(of, **seen):
    shown = snapshot(of, **seen)
    return long_wait(of, shown, queue_stuck(of, shown))


@pytest.mark.parametrize(
    ("of", "seen", "status", "reason"),
    [
        pytest.param(PATIENT, {"holders": TWO}, False, "QueueEmpty", id="nobody waits"),
        pytest.param(PATIENT, {**MOVES, "waiters": (waiter(1, NOW - 119),)}, False, "ShortWaits", id="not long yet"),
        pytest.param(PATIENT, {**MOVES, "waiters": (waiter(1, NOW - 121),)}, True, "LimitTooLow", id="long"),
        pytest.param(
            PATIENT,
            {**MOVES, "waiters": (waiter(1, JUST_NOW),), "oldest_waiter_since": NOW - 121},
            True,
            "LimitTooLow",
            id="behind others of higher priority, and not among those named",
        ),
        pytest.param(PATIENT, {"holders": TWO, "waiters": (waiter(1, LONG_AGO),)}, False, "Stuck", id="stuck"),
        pytest.param(
            PATIENT,
            {**MOVES, "waiters": (waiter(1, LONG_AGO),), "reclaim_until": NOW + 5},
            False,
            "Reclaiming",
            id="slots are being put back after a loss",
        ),
        pytest.param(
            resource(limit=0, alerts={"queueStuckAfter": "1h", "longWaitAfter": "1s"}),
            {"waiters": (waiter(1, JUST_NOW),)},
            False,
            "LimitZero",
            id="limit 0",
        ),
        pytest.param(
            resource(state="Paused", alerts={"queueStuckAfter": "1h", "longWaitAfter": "1s"}),
            {"waiters": (waiter(1, JUST_NOW),)},
            False,
            "Paused",
            id="paused",
        ),
        pytest.param(
            PATIENT.model_copy(update={"status": Status.read(ALERTED)}),
            {**MOVES, "waiters": (waiter(1, NOW - 97),)},
            True,
            "LimitTooLow",
            id="swings around the threshold: still the same alert",
        ),
        pytest.param(
            PATIENT.model_copy(update={"status": Status.read(ALERTED)}),
            {**MOVES, "waiters": (waiter(1, NOW - 95),)},
            False,
            "ShortWaits",
            id="over",
        ),
    ],
)
def test_a_wait_is_long_when_slots_are_granted_and_somebody_waits_longer_than_wanted(of, seen, status, reason):
    verdict = long_waits(of, **seen)
    assert (verdict.status, verdict.reason) == (status, reason)


def test_a_long_wait_says_since_when_who_is_first_and_what_to_do():
    said = long_waits(PATIENT, **MOVES, waiters=(waiter(1, NOW - 130),)).message
    assert "somebody waits since 2027-01-15T07:57:50Z, longer than 2m" in said
    assert "First in line: pod payments/waiter-1, since 2027-01-15T07:57:50Z" in said
    assert "Raise spec.limit" in said


@pytest.mark.parametrize(
    ("of", "held", "status", "reason"),
    [
        pytest.param(resource(), TWO, False, "NoMaxHold", id="not asked for"),
        pytest.param(resource(maxHold="5m"), (), False, "WithinMaxHold", id="nobody holds"),
        pytest.param(resource(maxHold="10m"), TWO, False, "WithinMaxHold", id="at most that long"),
        pytest.param(resource(maxHold="5m"), TWO, True, "MaxHoldExceeded", id="too long"),
        pytest.param(resource(maxHold="5m"), (*TWO[:1], holder(2, JUST_NOW)), True, "MaxHoldExceeded", id="one of two"),
    ],
)
def test_a_holder_is_overdue_when_it_renews_beyond_max_hold(of, held, status, reason):
    verdict = holder_overdue(of, snapshot(of, holders=held))
    assert (verdict.status, verdict.reason) == (status, reason)


def test_an_overdue_holder_is_named():
    of = resource(maxHold="5m")
    said = holder_overdue(of, snapshot(of, holders=TWO)).message
    assert "longest by pod payments/holder-1, since 2027-01-15T07:50:00Z (fence 1799999400000000)" in said
    later = holder_overdue(of, snapshot(of, holders=TWO, server_time=NOW + 60)).message
    assert later == said, "it stays the same while nothing happens"


@pytest.mark.parametrize(
    ("spec", "before", "later", "silent"),
    [
        pytest.param({}, 30, 9, False, id="renewed of late"),
        pytest.param({}, 30, 12, True, id="two renewals missed"),
        pytest.param({}, 20, 12, False, id="the lease is another since the look before"),
        pytest.param({"lease": "1m"}, 60, 1, True, id="five seconds between renewals, whatever the lease"),
        pytest.param({"lease": "700s"}, 700, 100, False, id="never renewed, or not with this lease"),
    ],
)
def test_a_holder_that_has_missed_two_renewals_is_silent(spec, before, later, silent):
    of = resource(limit=1, status={"leaseSeconds": before}, **spec)
    held = holder(1, LONG_AGO)  # its lease ends at NOW + 30
    seen = snapshot(of, holders=(held,), server_time=NOW + later)
    assert free_at(of, seen, held) == (NOW + 30 if silent else None)


def test_a_stuck_queue_says_when_the_slot_of_a_silent_holder_is_free():
    of = resource(limit=1, maxHold="1m", status={"leaseSeconds": 30}, alerts={"queueStuckAfter": "1m"})
    seen = snapshot(of, holders=(holder(1, LONG_AGO),), waiters=(waiter(1, LONG_AGO),), server_time=NOW + 20)
    assert "it has gone silent, and its slot is free at 2027-01-15T08:00:30Z. First" in queue_stuck(of, seen).message
    assert holder_overdue(of, seen).message.endswith("gone silent: its slot is free at 2027-01-15T08:00:30Z")
    assert dump(observed(of, seen))["heldBy"][0]["freeAt"] == "2027-01-15T08:00:30Z"


def test_a_conflict_says_whose_name_it_is_and_what_to_do():
    older = resource("older", name="shared")
    younger = resource("younger", name="shared")
    verdict = conflict(younger, older)
    assert (verdict.status, verdict.reason) == (False, "ResourceConflict")
    assert "payments/shared belongs to the older resource older; delete one" in verdict.message


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        ({}, True),
        ({"config": None}, False),
        ({"config": resource(generation=2).config(0)}, False),
        ({"config": resource(uid="another").config(0)}, False),
    ],
)
def test_ready_means_that_redis_has_this_generation_of_this_resource(seen, status):
    assert ready(API, snapshot(API, **seen)).status is status


def test_a_config_that_cannot_be_written_is_told_with_the_way_out():
    verdict = ready(API, snapshot(API, config=resource(generation=9, uid="another").config(0)))
    assert verdict.reason == "NotWritten"
    assert "generation 1 of uid uid-licensed-api, it has generation 9 of uid another" in verdict.message
    assert "redis-cli del 'sem:{payments/licensed-api}:config'" in verdict.message


def test_the_transition_time_moves_only_when_the_status_flips():
    first = datetime(2026, 1, 1, tzinfo=UTC)
    later = first + timedelta(hours=1)
    [before] = settle([Verdict("Ready", status=True, reason="Configured", message="a")], [], 1, first)
    [same] = settle([Verdict("Ready", status=True, reason="Configured", message="b")], [before], 2, later)
    assert (same.last_transition_time, same.message, same.observed_generation) == (first, "b", 2)
    [flipped] = settle([Verdict("Ready", status=None, reason="RedisUnavailable", message="")], [same], 2, later)
    assert (flipped.status, flipped.last_transition_time) == ("Unknown", later)


@pytest.mark.parametrize(
    ("identity", "expected"),
    [
        ({"pod": "api-0", "namespace": "payments", "pid": "7"}, "pod payments/api-0"),
        ({"pod": "api-0"}, "pod api-0"),
        ({"app": "worker.py", "pid": "7", "host": "vm"}, "worker.py 7 on vm"),
        ({}, "an unknown process"),
        (None, "an unknown process"),
        ({"pod": "two\nlines", "pid": 7}, "process 7 on ?"),
    ],
)
def test_processes_are_named_as_people_find_them(identity, expected):
    assert who(identity) == expected


def test_a_paused_semaphore_is_told_how_to_go_on():
    paused = resource(state=State.PAUSED, alerts={"queueStuckAfter": "1m"})
    verdict = queue_stuck(paused, snapshot(paused, waiters=(waiter(1, LONG_AGO),)))
    assert "set it to Active" in verdict.message
    assert verdict.reason == conditions.PAUSED
