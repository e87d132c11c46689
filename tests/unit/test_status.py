from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from tests.unit.factories import NOW, holder, resource, snapshot, waiter

from distributed_semaphore.protocol import UnreadableError
from semaphore_operator.models import Status
from semaphore_operator.status import clean, conflicting, dump, observed, reason_of, unobserved, unusable

API = resource()
MIDNIGHT = datetime(2027, 1, 1, tzinfo=UTC)


def conditions(status: Status) -> dict[str, tuple[str, str]]:
    return {condition.type: (condition.status, condition.reason) for condition in status.conditions}


def test_a_status_tells_who_holds_and_who_waits():
    seen = snapshot(API, holders=(holder(1), holder(2)), waiters=(waiter(1, NOW - 50), waiter(2, NOW - 40)))
    written = dump(observed(API, seen, 12.34))
    assert (written["limit"], written["holders"], written["waiting"]) == (2, 2, 2)
    assert (written["summary"], written["throughput"], written["leaseSeconds"]) == ("Active", "12.3/s", 30.0)
    assert written["key"] == "sem:{payments/licensed-api}:"
    assert written["oldestWaiterSince"] == "2027-01-15T07:59:10Z"
    assert [(one["pod"], one["fence"]) for one in written["heldBy"]] == [
        ("holder-1", round((NOW - 60) * 1e6)),
        ("holder-2", round((NOW - 60) * 1e6)),
    ]
    assert [(one["pod"], one["position"]) for one in written["waitingLine"]] == [("waiter-1", 1), ("waiter-2", 2)]


@pytest.mark.parametrize(
    ("spec", "seen", "expected"),
    [
        ({}, {"pace": 2.0}, ["2.0s", "4.0s"]),
        ({}, {"pace": 0.0}, [None, None]),
        ({"state": "Paused"}, {"pace": 2.0}, [None, None]),
        ({"limit": 0}, {"pace": 2.0}, [None, None]),
        ({}, {"pace": 2.0, "reclaim_until": NOW + 5}, [None, None]),
        ({"alerts": {"queueStuckAfter": "1s"}}, {"pace": 2.0}, [None, None]),
    ],
)
def test_a_wait_is_expected_only_while_slots_are_granted(spec, seen, expected):
    of = resource(**spec)
    status = observed(
        of, snapshot(of, holders=(holder(1),), waiters=(waiter(1, NOW - 50), waiter(2, NOW - 40)), **seen)
    )
    assert [one.expected_wait for one in status.waiting_line] == expected


def test_what_is_written_reads_back_equal_so_that_a_quiet_status_is_not_written_again():
    seen = snapshot(API, holders=(holder(1),), waiters=(waiter(1, NOW - 1),))
    first = observed(API, seen, 0.0)
    again = resource(status=json.loads(json.dumps(dump(first))))
    assert again.status == first
    assert observed(again, seen, 0.0) == first


@pytest.mark.parametrize("letter", ["x", "ö", "🔒", "<", '"', "\\", "\n"])
def test_a_status_stays_below_12_kib_whatever_clients_call_themselves(letter):
    """What is left of 16 KiB is for the spec and metadata (tests/cluster/test_crowd.py)."""
    names = dict.fromkeys(("pod", "namespace", "node", "app", "host", "pid"), letter * 500)
    many = tuple(waiter(n, NOW - 600, **names) for n in range(1, 11))
    held = tuple(holder(n, NOW - 600, **names) for n in range(1, 11))
    of = resource(maxHold="1m", limit=10)
    written = dump(observed(of, snapshot(of, holders=held, waiters=many, waiter_count=10_000), 1.0))
    assert (written["waiting"], len(written["heldBy"]), len(written["waitingLine"])) == (10_000, 10, 10)
    stored = json.dumps(written, ensure_ascii=False).encode()
    assert len(stored) + 5 * sum(map(stored.count, b"<>&")) < 12 * 1024


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RedisConnectionError("Error 111 connecting to redis:6379. Connection refused."), "ConnectionFailed"),
        (AuthenticationError("WRONGPASS invalid username-password pair"), "AuthenticationFailed"),
        (NoPermissionError("NOPERM this user has no permissions"), "PermissionDenied"),
        (TimeoutError(), "ConnectionFailed"),
        (ConnectionRefusedError("AUTHORITY refused"), "ConnectionFailed"),
        (UnreadableError("what is stored cannot be read: KeyError('lease')"), "CommandFailed"),
        (ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"), "CommandFailed"),
        (ResponseError("ERR NOPERM inside a script"), "PermissionDenied"),
    ],
)
def test_a_failure_of_redis_has_a_reason(error, reason):
    assert reason_of(error) == reason


def test_while_redis_is_away_the_last_known_numbers_stay():
    before = observed(API, snapshot(API, holders=(holder(1),)), 1.0)
    status = unobserved(API.model_copy(update={"status": before}), TimeoutError(), "redis://r:6379/0", MIDNIGHT)
    assert next(c.message for c in status.conditions if c.type == "RedisAvailable") == "redis://r:6379/0: TimeoutError"
    assert (status.holders, status.summary) == (1, "RedisUnavailable")
    assert conditions(status) == {
        "Ready": ("Unknown", "RedisUnavailable"),
        "RedisAvailable": ("False", "ConnectionFailed"),
        **dict.fromkeys(("QueueStuck", "LongWait", "HolderOverdue"), ("Unknown", "RedisUnavailable")),
    }


def test_the_younger_of_two_resources_shows_no_numbers_that_are_not_its_own():
    older, younger = resource("older", name="shared"), resource("younger", name="shared")
    status = conflicting(younger, older, MIDNIGHT)
    assert (status.summary, status.holders) == ("Conflict", None)
    assert conditions(status) == {"Ready": ("False", "ResourceConflict")}


def test_a_spec_that_cannot_be_used_is_told_and_old_numbers_are_not():
    before = dump(observed(API, snapshot(API, holders=(holder(1),)), 12.0))
    status = unusable(resource(status=before, lease="soon"), MIDNIGHT)
    assert (status.summary, status.holders, status.held_by) == ("Invalid", None, ())
    assert (status.observed_generation, status.lease_seconds) == (1, 30), "what a loss of data takes to know"
    assert conditions(status) == {"Ready": ("False", "InvalidSpec")}
    assert "not 'soon'. Correct it" in status.conditions[0].message


@pytest.mark.parametrize(
    ("spec", "seen", "summary"),
    [
        ({}, {}, "Active"),
        ({"state": "Paused"}, {}, "Paused"),
        ({"state": "Closed"}, {}, "Closed"),
        ({}, {"config": None}, "Pending"),
        ({"limit": 1}, {"holders": (holder(1, NOW - 600),), "waiters": (waiter(1, NOW - 600),)}, "QueueStuck"),
        ({"state": "Paused"}, {"waiters": (waiter(1, NOW - 600),)}, "Paused"),
        ({"limit": 0}, {"waiters": (waiter(1, NOW - 600),)}, "Active"),
    ],
)
def test_the_summary_is_one_word(spec, seen, summary):
    of = resource(**spec)
    assert observed(of, snapshot(of, **seen)).summary == summary


def test_the_throughput_of_the_look_before_stays_when_there_is_no_new_one():
    before = resource(status=dump(observed(API, snapshot(API), 12.0)))
    assert observed(before, snapshot(API)).throughput == "12.0/s"
    assert observed(API, snapshot(API)).throughput == "0.0/s"


@pytest.mark.parametrize(
    "text",
    [
        "cannot connect to redis://user:hunter2@redis:6379/0",
        "Error 22 connecting to :hunter2@redis:6379",
        "not a Redis URL: 'redis:user:hunter2@redis'",
    ],
)
def test_no_error_shows_a_password(text):
    assert "hunter2" not in clean(ValueError(text))
    assert "redis" in clean(ValueError(text))


def test_an_error_is_short():
    assert len(clean(ValueError("x" * 10_000))) == 1024
    assert clean(TimeoutError()) == "TimeoutError"


def test_a_status_that_another_version_has_written_is_written_anew():
    assert resource(status={"conditions": "none", "holders": "many"}).status == Status()
