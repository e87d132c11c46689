from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.unit.factories import resource

from semaphore_operator.conditions import Verdict, settle
from semaphore_operator.events import announcements, config_restored, keys_left

NOW = datetime(2027, 1, 1, tzinfo=UTC)
STUCK = ("QueueStuck", True, "HoldersNotReleasing")
PAUSED = ("QueueStuck", True, "Paused")
LONG = ("LongWait", True, "LimitTooLow")
EMPTY = ("QueueStuck", False, "QueueEmpty")
CONFLICT = ("Ready", False, "ResourceConflict")


def condition(kind: str, status: bool | None, reason: str):
    return settle([Verdict(kind, status=status, reason=reason, message=f"because {reason}")], [], 1, NOW)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        pytest.param(None, STUCK, [("Warning", "HoldersNotReleasing")], id="stuck"),
        pytest.param(STUCK, STUCK, [], id="still stuck: one Event a situation"),
        pytest.param(STUCK, ("QueueStuck", True, "HeadTooHeavy"), [("Warning", "HeadTooHeavy")], id="another cause"),
        pytest.param(STUCK, ("QueueStuck", False, "Moving"), [("Normal", "Moving")], id="moves again"),
        pytest.param(STUCK, EMPTY, [("Normal", "QueueEmpty")], id="nobody waits any more"),
        pytest.param(STUCK, ("QueueStuck", None, "RedisUnavailable"), [], id="Redis away"),
        pytest.param(None, EMPTY, [], id="never was"),
        pytest.param(("QueueStuck", False, "Moving"), PAUSED, [("Normal", "Paused")], id="wanted"),
        pytest.param(PAUSED, STUCK, [("Warning", "HoldersNotReleasing")], id="resumed, and stuck"),
        pytest.param(None, LONG, [("Warning", "LimitTooLow")], id="long wait"),
        pytest.param(LONG, LONG, [], id="still long"),
        pytest.param(LONG, ("LongWait", False, "ShortWaits"), [("Normal", "ShortWaits")], id="short again"),
        pytest.param(LONG, ("LongWait", False, "Stuck"), [], id="stuck now, which is told as such"),
        pytest.param(None, ("HolderOverdue", True, "MaxHoldExceeded"), [("Warning", "MaxHoldExceeded")], id="overdue"),
        pytest.param(None, CONFLICT, [("Warning", "ResourceConflict")], id="conflict"),
        pytest.param(CONFLICT, CONFLICT, [], id="still"),
        pytest.param(None, ("Ready", False, "InvalidSpec"), [("Warning", "InvalidSpec")], id="bad spec"),
        pytest.param(None, ("Ready", True, "Configured"), [], id="ready"),
        pytest.param(None, ("RedisAvailable", False, "ConnectionFailed"), [], id="Redis is one thing, resources many"),
    ],
)  # fmt: skip
def test_one_event_a_situation(before, after, said):
    earlier = condition(*before) if before else ()
    found = list(announcements(earlier, condition(*after)))
    assert [("Warning" if each.warning else "Normal", each.reason) for each in found] == said
    assert all(each.message == f"because {each.reason}" for each in found)


def test_a_lost_config_is_a_warning():
    assert (config_restored().warning, config_restored().reason) == (True, "ConfigRestored")


def test_what_is_left_in_redis_is_named_with_the_command_that_removes_it():
    said = keys_left(resource(), "Connection refused")
    assert (said.warning, said.reason) == (True, "KeysLeft")
    assert "redis-cli --scan --pattern 'sem:{payments/licensed-api}:*' | xargs redis-cli unlink" in said.message
