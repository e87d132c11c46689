"""The status of a resource: a pure function of its spec, a snapshot and the status before."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import AuthenticationError, NoPermissionError, ResponseError

from distributed_semaphore.protocol import UnreadableError
from semaphore_operator.conditions import (
    AUTHENTICATION_FAILED,
    COMMAND_FAILED,
    CONNECTION_FAILED,
    LONGEST_TEXT,
    MOVING,
    PERMISSION_DENIED,
    QUEUE_STUCK,
    READY,
    WANTED,
    available,
    conflict,
    free_at,
    holder_overdue,
    invalid,
    long_wait,
    moment,
    queue_stuck,
    ready,
    settle,
    unavailable,
)
from semaphore_operator.durations import rough
from semaphore_operator.identities import cut, fitted, identified
from semaphore_operator.models import NAMED, HolderStatus, Status, WaiterStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from distributed_semaphore.protocol import Holder, Snapshot, Waiter
    from semaphore_operator.models import Resource

P = TypeVar("P", "Holder", "Waiter")


def observed(resource: Resource, snapshot: Snapshot, throughput: float | None = None) -> Status:
    """Say what a look at Redis has shown. `throughput`: grants per second since the look before, if there was one."""
    before = resource.status
    stuck = queue_stuck(resource, snapshot)
    waits = long_wait(resource, snapshot, stuck)
    verdicts = [ready(resource, snapshot), available(), stuck, waits, holder_overdue(resource, snapshot)]
    moves = stuck.reason == MOVING and waits.reason not in WANTED
    conditions = settle(verdicts, before.conditions, resource.generation, moment(snapshot.server_time))
    config = snapshot.config
    oldest = snapshot.oldest_waiter_since
    return Status(
        observed_generation=config.generation if config and config.uid == resource.uid else before.observed_generation,
        key=resource.keys.prefix,
        summary=_summary({verdict.type: (verdict.status, verdict.reason) for verdict in verdicts}, resource),
        limit=config.limit if config else None,
        lease_seconds=config.lease_ms / 1000 if config else None,
        holders=snapshot.held,
        waiting=snapshot.waiter_count,
        oldest_waiter_since=moment(oldest) if oldest else None,
        last_grant_time=moment(snapshot.last_grant) if snapshot.last_grant else None,
        # Not unknown at the first look: the second would be a write of every new resource for nothing.
        throughput=before.throughput or "0.0/s" if throughput is None else f"{throughput:.1f}/s",
        held_by=tuple(
            HolderStatus(
                **known,
                since=moment(holder.since),
                weight=holder.weight,
                fence=holder.fence,
                free_at=moment(free) if (free := free_at(resource, snapshot, holder)) else None,
            )
            for holder, known in _named(snapshot.holders)
        ),
        waiting_line=tuple(
            WaiterStatus(
                **known,
                since=moment(waiter.since),
                weight=waiter.weight,
                position=waiter.position,
                priority=waiter.priority,
                expected_wait=rough(snapshot.expected_wait(waiter.position)) if moves else None,
            )
            for waiter, known in _named(snapshot.waiters)
        ),
        conditions=conditions,
    )


def unobserved(resource: Resource, error: Exception, address: str, now: datetime) -> Status:
    """Say that the Redis at an address (empty: there is none) could not be asked; what was last seen stays."""
    verdicts = unavailable(reason_of(error), ": ".join(filter(None, (address, clean(error)))))
    conditions = settle(verdicts, resource.status.conditions, resource.generation, now)
    return resource.status.model_copy(update={"summary": "RedisUnavailable", "conditions": conditions})


def conflicting(resource: Resource, winner: Resource, now: datetime) -> Status:
    """Say that the name belongs to another resource; holders and waiters are shown there."""
    conditions = settle([conflict(resource, winner)], resource.status.conditions, resource.generation, now)
    return Status(summary="Conflict", conditions=conditions)


def unusable(resource: Resource, now: datetime) -> Status:
    """Say that the spec cannot be used; who holds and who waits is not looked at meanwhile."""
    before = resource.status
    conditions = settle([invalid(resource)], before.conditions, resource.generation, now)
    kept = before.model_dump(include={"observed_generation", "key", "limit", "lease_seconds"})
    return Status(summary="Invalid", conditions=conditions, **kept)


def reason_of(error: Exception) -> str:
    """Name the kind of a Redis failure."""
    text = str(error)
    if isinstance(error, NoPermissionError) or "NOPERM" in text:
        return PERMISSION_DENIED
    if isinstance(error, AuthenticationError) or text.startswith(("WRONGPASS", "NOAUTH")):
        return AUTHENTICATION_FAILED
    return COMMAND_FAILED if isinstance(error, ResponseError | UnreadableError) else CONNECTION_FAILED


def clean(error: Exception) -> str:
    """Give an error's text, short and without what stands before the host in an address."""
    text = str(error) or type(error).__name__
    return cut(re.sub(r"[^\s/@'\"]*:[^\s@'\"]*@", "", text), LONGEST_TEXT)


def dump(status: Status) -> dict[str, Any]:
    """Give a status as it is written: what is unknown is null, so that a merge patch takes it away."""
    written = status.model_dump(mode="json", by_alias=True)
    for name in ("heldBy", "waitingLine"):
        written[name] = [{key: value for key, value in party.items() if value is not None} for party in written[name]]
    return written


def _named(parties: Sequence[P]) -> Iterator[tuple[P, dict[str, Any]]]:
    """Give the first of them, as many as are named, each with what is shown of its identity."""
    return zip(parties, fitted(identified(party.identity) for party in parties[:NAMED]), strict=False)


def _summary(said: dict[str, tuple[bool | None, str]], resource: Resource) -> str:
    if not said[READY][0]:
        return "Pending"
    stuck, reason = said[QUEUE_STUCK]
    return "QueueStuck" if stuck and reason not in WANTED else resource.spec.state.value
