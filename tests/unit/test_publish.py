from __future__ import annotations

import pytest
from tests.unit.factories import NOW, resource, snapshot, waiter

from semaphore_operator import publish
from semaphore_operator.kube import KubeError, KubeUnreachableError
from semaphore_operator.publish import BURST, PARALLEL, Publisher
from semaphore_operator.record import Record, Seen
from semaphore_operator.registry import Registry
from semaphore_operator.status import observed


class Api:
    """Takes down what would be written; the API server itself is in tests/cluster."""

    def __init__(self, failure: KubeError | None = None) -> None:
        self.written: list[str] = []
        self.events: list[str] = []
        self.tried = 0
        self.failure = failure

    async def write_status(self, resource, status) -> bool:
        self.tried += 1
        if self.failure:
            raise self.failure
        self.written.append(resource.name)
        return True

    async def event(self, resource, announcement) -> None:
        self.events.append(announcement.reason)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [1000.0]
    monkeypatch.setattr(publish.time, "monotonic", lambda: clock[0])
    return clock


def publisher(api: Api, period: float = 5.0) -> Publisher:
    return Publisher(api, Registry(), Record(), period)


def look(name: str, grants: int = 0, **seen) -> Seen:
    """A look at a resource whose status has been written before, with so many grants."""
    known = resource(name)
    before = known.model_copy(update={"status": observed(known, snapshot(known), 0.0)})
    return Seen(before, None, observed(before, snapshot(known, **seen), float(grants)))


async def test_an_equal_status_is_not_written(now):
    api = Api()
    await publisher(api).publish([look("quiet"), look("busy", grants=1)])
    assert api.written == ["busy"]


async def test_a_status_is_written_at_most_once_a_period_whatever_changes(now):
    api = Api()
    writes = publisher(api, period=5.0)
    for _ in range(11):
        await writes.publish([look("busy", grants=1), look("flips", config=None)])
        now[0] += 1.0
    assert sorted(api.written) == ["busy"] * 3 + ["flips"] * 3  # at 0, 5 and 10 s


async def test_changed_conditions_go_first_when_there_is_too_much_to_write(now):
    api = Api()
    writes = publisher(api)
    await writes.publish([*(look(f"busy-{n}", grants=1) for n in range(BURST)), look("flips", config=None)])
    assert len(api.written) == BURST
    assert "flips" in api.written[:PARALLEL]
    now[0] += 1.0
    left = [look(f"busy-{n}", grants=1) for n in range(BURST)]
    await writes.publish(left)
    assert len(set(api.written)) == len(api.written) == BURST + 1, "what was left out comes with the next look"


async def test_an_api_server_that_does_not_answer_is_not_asked_for_each_resource(now):
    api = Api(KubeUnreachableError("no answer"))
    await publisher(api).publish([look(f"busy-{n}", grants=1) for n in range(200)])
    assert api.tried <= PARALLEL


async def test_a_resource_that_is_refused_holds_up_no_other(now):
    api = Api(KubeError("refused"))
    await publisher(api).publish([look(f"busy-{n}", grants=1) for n in range(50)])
    assert api.tried == 50


async def test_an_event_follows_a_status_that_was_written(now):
    known = resource("api", alerts={"queueStuckAfter": "1s"}, limit=0)
    stuck = observed(known, snapshot(known, waiters=(waiter(1, NOW - 60),)))
    api, refused = Api(), Api(KubeError("refused"))
    for each in (api, refused):
        await publisher(each).publish([Seen(known, None, stuck)])
    assert (api.events, refused.events) == (["LimitZero"], [])
