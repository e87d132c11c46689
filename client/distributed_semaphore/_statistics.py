"""What a semaphore looks like at one moment, and why somebody waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distributed_semaphore._errors import Unavailable
from distributed_semaphore.protocol.config import State
from distributed_semaphore.protocol.scripts import read_snapshot

if TYPE_CHECKING:
    from distributed_semaphore._courier import Courier
    from distributed_semaphore._session import Session
    from distributed_semaphore.protocol.snapshot import Counters, Holder, Snapshot


@dataclass(frozen=True, slots=True)
class Statistics:
    """A semaphore at one moment, as all its users see it, and this process's part in it."""

    name: str
    limit: int | None
    """None: not configured."""
    state: State | None
    held: int
    """Weight of all slots held, by anybody."""
    waiting: int
    """Requests in the queue, of anybody."""
    held_here: int
    """Slots that this process holds."""
    waiting_here: int
    """Requests of this process without a slot yet, those included that its local limit keeps back."""
    expected_wait: float | None
    """Seconds that a request made now would wait, judged by recent grants; None: not known."""
    totals: Counters
    """Totals of the semaphore, for all its users."""


def statistics(name: str, session: Session, snapshot: Snapshot) -> Statistics:
    """Make `Statistics` of a snapshot and this process's standing."""
    config = snapshot.config
    free = config is not None and snapshot.held < config.limit and not snapshot.waiter_count
    return Statistics(
        name=name,
        limit=config.limit if config else None,
        state=config.state if config else None,
        held=snapshot.held,
        waiting=snapshot.waiter_count,
        held_here=len(session.held),
        waiting_here=session.waiting_here,
        expected_wait=0.0 if free else snapshot.expected_wait(snapshot.waiter_count + 1),
        totals=snapshot.counters,
    )


def seen(courier: Courier, reply: Any) -> Snapshot:
    """Read the reply of an inspection.

    Raises:
        Unavailable: it is an error, or what stands in Redis is not ours.
    """
    snapshot = read_snapshot(reply)
    if isinstance(snapshot, Exception):
        raise Unavailable(f"Redis {courier.shown_url} cannot be used: {snapshot}")
    return snapshot


def reason(snapshot: Snapshot) -> str:
    """Say in one line what a request was waiting for."""
    config = snapshot.config
    if config is None:
        return "its configuration has vanished from Redis"
    if config.state is not State.ACTIVE:
        return f"its state is {config.state}, so nothing is granted"
    if config.limit == 0:
        return "its limit is 0, so nothing is granted"
    if snapshot.reclaim_until is not None:
        return "Redis lost its data a moment ago, and nothing is granted until holders have put back their slots"
    place = f"{_ordinal(snapshot.position)} of {snapshot.waiter_count} in line, " if snapshot.position else ""
    names = ", ".join(f"{_who(holder)} for {snapshot.server_time - holder.since:.0f}s" for holder in snapshot.holders)
    more = snapshot.holder_count - len(snapshot.holders)
    others = f" and {more} more" if more > 0 else ""
    part = f", {snapshot.held} of it" if 0 < snapshot.held < config.limit else ""
    return f"{place}limit {config.limit}{part} held by {names or 'nobody'}{others}"


def _who(holder: Holder) -> str:
    known = holder.identity
    if "pod" in known:
        return f"pod {known['namespace']}/{known['pod']}" if "namespace" in known else f"pod {known['pod']}"
    return f"{known.get('app', 'process')} {known['pid']} on {known['host']}" if "pid" in known else holder.token


def _ordinal(n: int) -> str:
    suffix = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"
