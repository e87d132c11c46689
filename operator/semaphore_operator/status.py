"""The status of a resource: a pure function of its spec, a snapshot and the status before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from semaphore_operator.conditions import (
    AUTHENTICATION_FAILED,
    CONNECTION_FAILED,
    PERMISSION_DENIED,
    QUEUE_STUCK,
    READY,
    RESOURCE_CONFLICT,
    available,
    moment,
    queue_stuck,
    ready,
    settle,
    unavailable,
)
from semaphore_operator.models import NAMED, HolderStatus, Status, WaiterStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from distributed_semaphore.protocol import Snapshot
    from semaphore_operator.models import Resource

LONGEST_TEXT: Final = 1024


def observed(resource: Resource, snapshot: Snapshot, winner: Resource | None, throughput: float | None) -> Status:
    """Say what a look at Redis has shown. `winner`: the resource that the name belongs to, if it is another."""
    before = resource.status
    verdicts = [ready(resource, snapshot, winner), available()]
    if winner is None:
        verdicts.append(queue_stuck(resource, snapshot))
    now = moment(snapshot.server_time)
    conditions = settle(verdicts, before.conditions, resource.generation, now)
    if winner is not None:
        return Status(observed_generation=before.observed_generation, summary="Conflict", conditions=conditions)
    config = snapshot.config
    oldest = snapshot.oldest_waiter_since
    return Status(
        observed_generation=config.generation if config and config.uid == resource.uid else before.observed_generation,
        key=resource.keys.prefix,
        summary=_summary(conditions, resource),
        limit=config.limit if config else None,
        lease_seconds=config.lease_ms / 1000 if config else None,
        holders=snapshot.held,
        waiting=snapshot.waiter_count,
        oldest_waiter_since=moment(oldest) if oldest else None,
        last_grant_time=moment(snapshot.last_grant) if snapshot.last_grant else None,
        throughput=f"{throughput:.1f}/s" if throughput is not None else before.throughput,
        held_by=tuple(
            HolderStatus(
                **_party(holder.identity), since=moment(holder.since), weight=holder.weight, fence=holder.fence
            )
            for holder in snapshot.holders[:NAMED]
        ),
        waiting_line=tuple(
            WaiterStatus(
                **_party(waiter.identity),
                since=moment(waiter.since),
                weight=waiter.weight,
                position=waiter.position,
                priority=waiter.priority,
            )
            for waiter in snapshot.waiters[:NAMED]
        ),
        conditions=conditions,
    )


def unobserved(resource: Resource, error: Exception, now: datetime) -> Status:
    """Say that Redis could not be asked; what was last seen stays."""
    verdicts = unavailable(reason_of(error), clean(error))
    conditions = settle(verdicts, resource.status.conditions, resource.generation, now)
    return resource.status.model_copy(update={"summary": "RedisUnavailable", "conditions": conditions})


def reason_of(error: Exception) -> str:
    """Name the kind of a Redis failure."""
    text = f"{type(error).__name__} {error}"
    if any(word in text for word in ("WRONGPASS", "NOAUTH", "AuthenticationError", "AUTH")):
        return AUTHENTICATION_FAILED
    if "NOPERM" in text or "NoPermission" in text:
        return PERMISSION_DENIED
    return CONNECTION_FAILED


def clean(error: Exception) -> str:
    """Give an error's text, short; redis-py names hosts in it, never passwords."""
    return (str(error) or type(error).__name__)[:LONGEST_TEXT]


def dump(status: Status) -> dict[str, Any]:
    """Give a status as it is written: what is unknown is null, so that a merge patch takes it away."""
    written = status.model_dump(mode="json", by_alias=True)
    for name in ("heldBy", "waitingLine"):
        written[name] = [{key: value for key, value in party.items() if value is not None} for party in written[name]]
    return written


def _party(identity: Mapping[str, str]) -> dict[str, Any]:
    known = ("pod", "namespace", "node", "app", "host", "pid")
    return {name: identity[name][:253] for name in known if name in identity}


def _summary(conditions: Any, resource: Resource) -> str:
    said = {condition.type: condition for condition in conditions}
    if said[READY].status != "True":
        return "Conflict" if said[READY].reason == RESOURCE_CONFLICT else "Pending"
    if said[QUEUE_STUCK].status == "True" and said[QUEUE_STUCK].reason not in ("Paused", "LimitZero"):
        return "QueueStuck"
    return resource.spec.state.value
