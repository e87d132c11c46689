"""What is to be said of a semaphore: pure functions of a resource and a snapshot, tested as tables."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from distributed_semaphore.protocol import State
from semaphore_operator.durations import seconds, show
from semaphore_operator.models import Condition

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from distributed_semaphore.protocol import Snapshot
    from semaphore_operator.models import Resource

READY: Final = "Ready"
REDIS_AVAILABLE: Final = "RedisAvailable"
QUEUE_STUCK: Final = "QueueStuck"

# Reasons, one word each, as documented in docs/reference.md.
CONFIGURED: Final = "Configured"
RESOURCE_CONFLICT: Final = "ResourceConflict"
NOT_WRITTEN: Final = "NotWritten"
REDIS_UNAVAILABLE: Final = "RedisUnavailable"
CONNECTED: Final = "Connected"
CONNECTION_FAILED: Final = "ConnectionFailed"
AUTHENTICATION_FAILED: Final = "AuthenticationFailed"
PERMISSION_DENIED: Final = "PermissionDenied"
MOVING: Final = "Moving"
QUEUE_EMPTY: Final = "QueueEmpty"
RECLAIMING: Final = "Reclaiming"
HOLDERS_NOT_RELEASING: Final = "HoldersNotReleasing"
HEAD_TOO_HEAVY: Final = "HeadTooHeavy"
SLOTS_IDLE: Final = "SlotsIdle"
PAUSED: Final = "Paused"
LIMIT_ZERO: Final = "LimitZero"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition before it is known when it last changed."""

    type: str
    status: bool | None
    """None: unknown."""
    reason: str
    message: str


def ready(resource: Resource, snapshot: Snapshot, winner: Resource | None) -> Verdict:
    """Say whether Redis has the resource's spec. `winner`: the older resource that owns the name, if there is one."""
    if winner is not None:
        return Verdict(
            READY,
            status=False,
            reason=RESOURCE_CONFLICT,
            message=f"{resource.semaphore} belongs to the older resource {winner.name}; rename or delete one",
        )
    config = snapshot.config
    if config is None or (config.uid, config.generation) != (resource.uid, resource.generation):
        return Verdict(
            READY, status=False, reason=NOT_WRITTEN, message=f"Redis does not have generation {resource.generation} yet"
        )
    return Verdict(READY, status=True, reason=CONFIGURED, message=f"Redis has generation {config.generation}")


def available() -> Verdict:
    """Say that Redis answers."""
    return Verdict(REDIS_AVAILABLE, status=True, reason=CONNECTED, message="Redis answers")


def unavailable(reason: str, message: str) -> list[Verdict]:
    """Say that Redis does not answer; what else holds is unknown then."""
    return [
        Verdict(READY, status=None, reason=REDIS_UNAVAILABLE, message="Redis cannot be asked"),
        Verdict(REDIS_AVAILABLE, status=False, reason=reason, message=message),
        Verdict(QUEUE_STUCK, status=None, reason=REDIS_UNAVAILABLE, message="Redis cannot be asked"),
    ]


def queue_stuck(resource: Resource, snapshot: Snapshot) -> Verdict:
    """Say whether somebody waits while nothing is granted, and which cause it has.

    Times are the server's, so that neither a restart of the operator nor its clock changes the verdict.
    """
    oldest = snapshot.oldest_waiter_since
    if oldest is None or snapshot.config is None:
        return Verdict(QUEUE_STUCK, status=False, reason=QUEUE_EMPTY, message="nobody waits")
    if snapshot.reclaim_until is not None:
        left = show(snapshot.reclaim_until - snapshot.server_time)
        message = f"Redis lost its data; holders put their slots back, and nothing is granted for another {left}"
        return Verdict(QUEUE_STUCK, status=False, reason=RECLAIMING, message=message)
    still = snapshot.server_time - max(oldest, snapshot.last_grant or 0)
    if still <= seconds(resource.spec.alerts.queue_stuck_after):
        return Verdict(QUEUE_STUCK, status=False, reason=MOVING, message="slots are being granted")
    reason, cause = _cause(snapshot)
    head = snapshot.waiters[0]
    return Verdict(
        QUEUE_STUCK,
        status=True,
        reason=reason,
        message=f"{snapshot.waiter_count} waiting and nothing granted for {show(still)}: {cause}. "
        f"First in line is {who(head.identity)}, waiting for {show(snapshot.server_time - head.since)}",
    )


def _cause(snapshot: Snapshot) -> tuple[str, str]:
    config = snapshot.config
    if config is None:
        raise ValueError("a queue without a config has no cause to name")
    if config.state is State.PAUSED:
        return PAUSED, "spec.state is Paused; set it to Active to go on"
    if config.limit == 0:
        return LIMIT_ZERO, "spec.limit is 0, which admits nobody; raise it to go on"
    if snapshot.held + snapshot.waiters[0].weight <= config.limit:
        return SLOTS_IDLE, f"only {snapshot.held} of {config.limit} slots are held; please report this as a fault"
    oldest = ""
    if snapshot.holders:
        holder = snapshot.holders[0]
        oldest = f"; the oldest holder is {who(holder.identity)}, for {show(snapshot.server_time - holder.since)}"
    if snapshot.held < config.limit:
        weight = snapshot.waiters[0].weight
        return HEAD_TOO_HEAVY, f"the head needs {weight} of {config.limit}, {snapshot.held} are held{oldest}"
    return HOLDERS_NOT_RELEASING, (
        f"all {config.limit} slots are held by processes that renew and give none back{oldest}; "
        "see what it is doing, or end it: its slots are free within one lease"
    )


def who(identity: Mapping[str, str]) -> str:
    """Name a process as people find it: by its pod, else by host and pid."""
    if "pod" in identity:
        space = identity.get("namespace")
        return f"pod {space}/{identity['pod']}" if space else f"pod {identity['pod']}"
    if "pid" in identity:
        return f"{identity.get('app', 'process')} {identity['pid']} on {identity.get('host', '?')}"
    return "an unknown process"


def settle(
    verdicts: Iterable[Verdict], before: Iterable[Condition], generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Turn verdicts into conditions; lastTransitionTime moves only when the status flips."""
    known = {condition.type: condition for condition in before}
    return tuple(_settled(verdict, known.get(verdict.type), generation, now) for verdict in verdicts)


def _settled(verdict: Verdict, before: Condition | None, generation: int, now: datetime) -> Condition:
    status = {True: "True", False: "False", None: "Unknown"}[verdict.status]
    unchanged = before is not None and before.status == status
    return Condition.model_validate(
        {
            "type": verdict.type,
            "status": status,
            "reason": verdict.reason,
            "message": verdict.message,
            "last_transition_time": before.last_transition_time if before and unchanged else now,
            "observed_generation": generation,
        }
    )


def moment(epoch: float) -> datetime:
    """Give a time as Kubernetes writes it, to the second."""
    return datetime.fromtimestamp(int(epoch), UTC)
