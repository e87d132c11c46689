"""An hour of a busy semaphore, looked at every five seconds: nothing is alarming, until one thing goes wrong."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.unit.factories import NOW, resource, snapshot

from distributed_semaphore.protocol import Holder, Waiter
from semaphore_operator.conditions import ALERTS, WANTED
from semaphore_operator.events import announcements
from semaphore_operator.status import observed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from distributed_semaphore.protocol import Snapshot
    from semaphore_operator.events import Announcement
    from semaphore_operator.models import Resource, Status

SWEEP: Final = 5.0
HOUR: Final = 3600.0
HALF: Final = NOW + HOUR / 2
"""When something goes wrong, in the tests in which something does."""


@dataclass
class Traffic:
    """Requests for one semaphore, first come, first served; times are the server's."""

    seed: int
    limit: int = 5
    load: float = 0.9
    """Weight asked for, as a part of what the limit serves."""
    hold: float = 4.0
    """Mean of a hold (s), exponential."""
    weights: tuple[int, ...] = (1,)
    grants: bool = True
    """False: a fault of ours, nothing is granted."""
    wedged: int = 0
    """So many holders from now on never give back."""
    holders: list[Holder] = field(default_factory=list)
    queue: list[Waiter] = field(default_factory=list)
    last_grant: float | None = None

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        mean = sum(self.weights) / len(self.weights)
        self.rate = self.load * self.limit / (self.hold * mean)
        """Arrivals per second."""
        self.ends: list[tuple[float, str]] = []
        """When which holder gives back, a heap."""
        self._number = 0
        self._next = NOW

    def run(self, until: float) -> None:
        """Let arrivals and releases happen up to a moment."""
        while (now := min([self._next, *(end for end, _ in self.ends[:1])])) <= until:
            if self.ends and self.ends[0][0] == now:
                _, token = heapq.heappop(self.ends)
                self.holders = [holder for holder in self.holders if holder.token != token]
            else:
                self._arrive(now)
            self._grant(now)

    def _arrive(self, now: float) -> None:
        self._number += 1
        weight = self._random.choice(self.weights)
        token = f"client.{self._number}.{weight}"
        self.queue.append(Waiter(token=token, position=0, since=now, weight=weight))
        self._next = now + self._random.expovariate(self.rate)

    def _grant(self, now: float) -> None:
        while self.queue and self.grants and self.held + self.queue[0].weight <= self.limit:
            first = self.queue.pop(0)
            self.last_grant = now
            since = round(now * 1e6)
            self.holders.append(Holder(token=first.token, fence=since, expires_at=now + 30, weight=first.weight))
            if self.wedged:
                self.wedged -= 1
            else:
                heapq.heappush(self.ends, (now + self._random.expovariate(1 / self.hold), first.token))

    @property
    def held(self) -> int:
        return sum(holder.weight for holder in self.holders)

    def look(self, of: Resource, now: float) -> Snapshot:
        self.run(now)
        line = self.queue[:10]
        return snapshot(
            of,
            server_time=now,
            held=self.held,
            holder_count=len(self.holders),
            waiter_count=len(self.queue),
            holders=tuple(sorted(self.holders, key=lambda holder: holder.fence)[:10]),
            waiters=tuple(
                Waiter(token=waiter.token, position=place, since=waiter.since, weight=waiter.weight)
                for place, waiter in enumerate(line, start=1)
            ),
            last_grant=self.last_grant,
            oldest_waiter_since=self.queue[0].since if self.queue else None,
        )


def hour(
    traffic: Traffic, spec: dict[str, Any], change: Callable[[Traffic], dict[str, Any]] | None = None
) -> Iterator[tuple[float, Status, list[Announcement]]]:
    """Give moment, status and Events of each sweep; a change at half time says what it writes into the spec."""
    of = resource(limit=traffic.limit, **spec)
    for sweep in range(int(HOUR / SWEEP)):
        now = NOW + sweep * SWEEP
        if change and now == HALF:
            spec |= change(traffic)
            traffic.limit = spec.get("limit", traffic.limit)
            of = resource(**{"limit": traffic.limit, **spec}).model_copy(update={"status": of.status})
        status = observed(of, traffic.look(of, now), 1.0)
        told = list(announcements(of.status.conditions, status.conditions))
        of = of.model_copy(update={"status": status})
        yield now, status, told


def alarming(status: Status) -> set[tuple[str, str]]:
    """Give type and reason of what is not as it should be."""
    wrong = {each.type: "True" if each.type in ALERTS else "False" for each in status.conditions}
    return {(each.type, each.reason) for each in status.conditions if each.status in (wrong[each.type], "Unknown")}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "busy",
    [
        pytest.param({"load": 0.95}, id="busy"),
        pytest.param({"load": 0.6, "weights": (1, 1, 1, 3)}, id="some are heavy"),
        pytest.param({"limit": 50, "load": 0.95, "hold": 20.0}, id="many slots, long holds"),
    ],
)
def test_an_hour_of_busy_health_is_alarming_to_nobody(seed: int, busy: dict[str, Any]) -> None:
    traffic, longest = Traffic(seed, **busy), 0
    for now, status, told in hour(traffic, {"maxHold": "10m", "alerts": {"queueStuckAfter": "30s"}}):
        assert (alarming(status), told) == (set(), []), now - NOW
        longest = max(longest, status.waiting)
    assert longest > 5, "or it was not busy"


def wedge(number: int) -> Callable[[Traffic], dict[str, Any]]:
    def change(traffic: Traffic) -> dict[str, Any]:
        traffic.wedged = number
        return {}

    return change


def wedge_one_before_heavy_ones(traffic: Traffic) -> dict[str, Any]:
    traffic.ends.pop()
    traffic.weights = (5,)
    return {}


def slow_down(traffic: Traffic) -> dict[str, Any]:
    traffic.hold *= 10
    return {}


def ask_for_more(traffic: Traffic) -> dict[str, Any]:
    traffic.rate *= 3
    return {}


def fail(traffic: Traffic) -> dict[str, Any]:
    traffic.grants = False
    return {}


def pause(traffic: Traffic) -> dict[str, Any]:
    traffic.grants = False
    return {"state": "Paused"}


@pytest.mark.parametrize(
    ("change", "kind", "reason", "within"),
    [
        pytest.param(lambda _: {"limit": 0}, "QueueStuck", "LimitZero", 180, id="limit 0"),
        pytest.param(pause, "QueueStuck", "Paused", 180, id="paused"),
        pytest.param(wedge(5), "QueueStuck", "HoldersNotReleasing", 240, id="every holder is wedged"),
        pytest.param(
            wedge_one_before_heavy_ones, "QueueStuck", "HeadTooHeavy", 240, id="wedged, and the head is heavy"
        ),
        pytest.param(fail, "QueueStuck", "SlotsIdle", 180, id="our fault"),
        pytest.param(slow_down, "LongWait", "LimitTooLow", HOUR, id="the downstream has become slow"),
        pytest.param(ask_for_more, "LongWait", "LimitTooLow", HOUR, id="more is asked for"),
        pytest.param(lambda _: {"limit": 2}, "LongWait", "LimitTooLow", HOUR, id="the limit was lowered"),
        pytest.param(wedge(1), "HolderOverdue", "MaxHoldExceeded", 15 * 60, id="one holder is wedged"),
    ],
)
def test_what_goes_wrong_at_half_time_raises_its_own_alert_once(
    change: Callable[[Traffic], dict[str, Any]], kind: str, reason: str, within: float
) -> None:
    spec = {"maxHold": "10m"} if kind == "HolderOverdue" else {}
    seen, events = [], []
    for now, status, told in hour(Traffic(0, load=0.7), spec, change):
        events += [(each.warning, each.reason) for each in told]
        if alarms := alarming(status):
            assert alarms == {(kind, reason)}
            seen.append(now - HALF)
    assert events == [(reason not in WANTED, reason)]
    assert 60 < seen[0] <= within
    assert seen[-1] == HOUR / 2 - SWEEP, "and it stays"
