"""What is to be said of a semaphore: pure functions of a resource and a snapshot, tested as tables.

A message names moments, not spans of time: so it stays the same while nothing happens, and nothing is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from distributed_semaphore.protocol import State
from semaphore_operator.durations import seconds
from semaphore_operator.identities import cut, identified
from semaphore_operator.models import Condition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distributed_semaphore.protocol import Holder, Snapshot
    from semaphore_operator.models import Resource

READY: Final = "Ready"
REDIS_AVAILABLE: Final = "RedisAvailable"
QUEUE_STUCK: Final = "QueueStuck"
LONG_WAIT: Final = "LongWait"
HOLDER_OVERDUE: Final = "HolderOverdue"
ALERTS: Final = (QUEUE_STUCK, LONG_WAIT, HOLDER_OVERDUE)
"""Conditions that are said of the queue and its holders: True is what somebody wants to hear of."""

# Reasons, one word each, as documented in docs/reference.md.
CONFIGURED: Final = "Configured"
RESOURCE_CONFLICT: Final = "ResourceConflict"
INVALID_SPEC: Final = "InvalidSpec"
NOT_WRITTEN: Final = "NotWritten"
REDIS_UNAVAILABLE: Final = "RedisUnavailable"
CONNECTED: Final = "Connected"
CONNECTION_FAILED: Final = "ConnectionFailed"
AUTHENTICATION_FAILED: Final = "AuthenticationFailed"
PERMISSION_DENIED: Final = "PermissionDenied"
COMMAND_FAILED: Final = "CommandFailed"
MOVING: Final = "Moving"
QUEUE_EMPTY: Final = "QueueEmpty"
RECLAIMING: Final = "Reclaiming"
HOLDERS_NOT_RELEASING: Final = "HoldersNotReleasing"
HEAD_TOO_HEAVY: Final = "HeadTooHeavy"
SLOTS_IDLE: Final = "SlotsIdle"
PAUSED: Final = "Paused"
LIMIT_ZERO: Final = "LimitZero"
STUCK: Final = "Stuck"
SHORT_WAITS: Final = "ShortWaits"
LIMIT_TOO_LOW: Final = "LimitTooLow"
NO_MAX_HOLD: Final = "NoMaxHold"
WITHIN_MAX_HOLD: Final = "WithinMaxHold"
MAX_HOLD_EXCEEDED: Final = "MaxHoldExceeded"

WANTED: Final = frozenset({PAUSED, LIMIT_ZERO})
"""Reasons of a stuck queue that somebody has written into the spec: no cause for a warning."""

LONGEST_BEAT: Final = 5.0
"""Seconds between two renewals of a client, or a third of the lease if that is less."""
LONGEST_TEXT: Final = 1024
"""Bytes of a message, and of an error's text in logs and Events."""
CALM: Final = 0.8
"""A long wait is over when the longest is below this part of longWaitAfter: one that swings around it is one alert."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition before it is known when it last changed."""

    type: str
    status: bool | None
    """None: unknown."""
    reason: str
    message: str


def ready(resource: Resource, snapshot: Snapshot) -> Verdict:
    """Say whether Redis has the resource's spec."""
    config = snapshot.config
    if config is not None and (config.uid, config.generation) == (resource.uid, resource.generation):
        return Verdict(READY, status=True, reason=CONFIGURED, message=f"Redis has generation {config.generation}")
    there = f"generation {config.generation} of uid {config.uid or '(a client)'}" if config else "none"
    return Verdict(
        READY,
        status=False,
        reason=NOT_WRITTEN,
        message=f"Redis does not take generation {resource.generation} of uid {resource.uid}, it has {there}. Do two "
        "operators use this Redis? If not (was Kubernetes restored from a backup?), let this one write it again: "
        f"redis-cli del '{resource.keys.config}'",
    )


def conflict(resource: Resource, winner: Resource) -> Verdict:
    """Say that an older resource owns the name."""
    return Verdict(
        READY,
        status=False,
        reason=RESOURCE_CONFLICT,
        message=f"the name {resource.semaphore} belongs to the older resource {winner.name}; delete one of them, "
        "this one takes over when that one goes",
    )


def invalid(resource: Resource) -> Verdict:
    """Say that the spec cannot be used."""
    return Verdict(
        READY,
        status=False,
        reason=INVALID_SPEC,
        message=f"the spec cannot be used, so Redis keeps the last that could: {resource.fault}. Correct it (kubectl "
        "edit); an older CRD has let it through, see that the present one is installed",
    )


def available() -> Verdict:
    """Say that Redis answers."""
    return Verdict(REDIS_AVAILABLE, status=True, reason=CONNECTED, message="Redis answers")


def unavailable(reason: str, message: str) -> list[Verdict]:
    """Say that Redis does not answer; what else holds is unknown then."""
    return [
        Verdict(READY, status=None, reason=REDIS_UNAVAILABLE, message="Redis cannot be asked"),
        Verdict(REDIS_AVAILABLE, status=False, reason=reason, message=message),
        *(Verdict(kind, status=None, reason=REDIS_UNAVAILABLE, message="Redis cannot be asked") for kind in ALERTS),
    ]


def queue_stuck(resource: Resource, snapshot: Snapshot) -> Verdict:
    """Say whether somebody waits while nothing is granted, and which cause it has.

    Times are the server's, so that neither a restart of the operator nor its clock changes the verdict.
    """
    oldest = snapshot.oldest_waiter_since
    if oldest is None or not snapshot.waiters:
        return Verdict(QUEUE_STUCK, status=False, reason=QUEUE_EMPTY, message="nobody waits")
    if snapshot.reclaim_until is not None:
        until = stamp(snapshot.reclaim_until)
        message = f"Redis lost its data; holders put their slots back, and nothing else is granted until {until}"
        return Verdict(QUEUE_STUCK, status=False, reason=RECLAIMING, message=message)
    still = max(oldest, snapshot.last_grant or 0)
    if snapshot.server_time - still <= seconds(resource.spec.alerts.queue_stuck_after):
        return Verdict(QUEUE_STUCK, status=False, reason=MOVING, message="slots are being granted")
    reason, cause = _cause(resource, snapshot)
    head = snapshot.waiters[0]
    return Verdict(
        QUEUE_STUCK,
        status=True,
        reason=reason,
        message=f"somebody waits and nothing was granted since {stamp(still)}: {cause}. First in line: "
        f"{who(head.identity)}, since {stamp(head.since)}",
    )


def _cause(resource: Resource, snapshot: Snapshot) -> tuple[str, str]:
    config, head = resource.spec, snapshot.waiters[0]
    if config.state is State.PAUSED:
        return PAUSED, "spec.state is Paused; set it to Active to go on"
    if config.limit == 0:
        return LIMIT_ZERO, "spec.limit is 0, which admits nobody; raise it to go on"
    if snapshot.held + head.weight <= config.limit:
        return SLOTS_IDLE, f"only {snapshot.held} of {config.limit} slots are held; please report this as a fault"
    oldest, advice = "", f"see what it does, or end it: its slots are free again within {config.lease}"
    if snapshot.holders:
        holder = snapshot.holders[0]
        oldest = f", longest by {who(holder.identity)}, since {stamp(holder.since)}"
        if free := free_at(resource, snapshot, holder):
            advice = f"it has gone silent, and its slot is free at {stamp(free)}"
    if snapshot.held < config.limit:
        return HEAD_TOO_HEAVY, (
            f"the first in line needs {head.weight} of {config.limit} slots, and {snapshot.held} stay held{oldest}; "
            "wait for the holders, end one, or raise spec.limit"
        )
    return HOLDERS_NOT_RELEASING, (
        f"{snapshot.held} of {config.limit} slots are held, and none is given back{oldest}; {advice}"
    )


def long_wait(resource: Resource, snapshot: Snapshot, stuck: Verdict) -> Verdict:
    """Say whether somebody waits for long although slots are granted; `stuck` is what `queue_stuck` says."""
    oldest, spec = snapshot.oldest_waiter_since, resource.spec
    if oldest is None:
        return Verdict(LONG_WAIT, status=False, reason=QUEUE_EMPTY, message="nobody waits")
    if stuck.status:
        return Verdict(LONG_WAIT, status=False, reason=STUCK, message="nothing is granted: see QueueStuck")
    if stuck.reason == RECLAIMING:
        return Verdict(LONG_WAIT, status=False, reason=RECLAIMING, message=stuck.message)
    if spec.state is State.PAUSED or spec.limit == 0:
        reason = PAUSED if spec.state is State.PAUSED else LIMIT_ZERO
        return Verdict(LONG_WAIT, status=False, reason=reason, message="nothing is granted, as the spec wants it")
    allowed = seconds(spec.alerts.long_wait_after)
    if any(before.type == LONG_WAIT and before.status == "True" for before in resource.status.conditions):
        allowed *= CALM
    if snapshot.server_time - oldest <= allowed:
        within = f"nobody has waited for {spec.alerts.long_wait_after}"
        return Verdict(LONG_WAIT, status=False, reason=SHORT_WAITS, message=within)
    first = snapshot.waiters[0] if snapshot.waiters else None
    head = f" First in line: {who(first.identity)}, since {stamp(first.since)}." if first else ""
    return Verdict(
        LONG_WAIT,
        status=True,
        reason=LIMIT_TOO_LOW,
        message=f"slots are granted, but somebody waits since {stamp(oldest)}, longer than "
        f"{spec.alerts.long_wait_after}.{head} Raise spec.limit if what it protects can bear it; else the holders are "
        "slow, or more is asked for than it can serve",
    )


def holder_overdue(resource: Resource, snapshot: Snapshot) -> Verdict:
    """Say whether a slot is held, and renewed, for longer than maxHold."""
    allowed = resource.spec.max_hold
    if allowed is None:
        return Verdict(HOLDER_OVERDUE, status=False, reason=NO_MAX_HOLD, message="spec.maxHold is not set")
    if not snapshot.holders or snapshot.server_time - snapshot.holders[0].since <= seconds(allowed):
        message = f"no slot is held for longer than {allowed}"
        return Verdict(HOLDER_OVERDUE, status=False, reason=WITHIN_MAX_HOLD, message=message)
    longest = snapshot.holders[0]
    free = free_at(resource, snapshot, longest)
    lives = "It is renewed, so its process lives, and never cut: see what it does, or end it"
    return Verdict(
        HOLDER_OVERDUE,
        status=True,
        reason=MAX_HOLD_EXCEEDED,
        message=f"held for longer than {allowed}, longest by {who(longest.identity)}, since "
        f"{stamp(longest.since)} (fence {longest.fence}). "
        + (f"Its process has gone silent: its slot is free at {stamp(free)}" if free else lives),
    )


def free_at(resource: Resource, snapshot: Snapshot, holder: Holder) -> float | None:
    """Say when the slot of a process that has missed two renewals is free again; None: it renews, as far as is known.

    That is known only by the lease that it renews with: not at the first look after another was written.
    """
    lease = snapshot.config.lease_ms / 1000 if snapshot.config else 0.0
    renewed = holder.expires_at - lease
    if resource.status.lease_seconds != lease or renewed < holder.since:
        return None
    silent = snapshot.server_time - renewed > 2 * min(lease / 3, LONGEST_BEAT) + 1
    return holder.expires_at if silent else None


def who(identity: Any) -> str:
    """Name a process as people find it: by its pod, else by host and pid."""
    known = identified(identity)
    if "pod" in known:
        return f"pod {known['namespace']}/{known['pod']}" if "namespace" in known else f"pod {known['pod']}"
    if "pid" in known:
        return f"{known.get('app', 'process')} {known['pid']} on {known.get('host', '?')}"
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
            "message": cut(verdict.message, LONGEST_TEXT),
            "last_transition_time": before.last_transition_time if before and unchanged else now,
            "observed_generation": generation,
        }
    )


def moment(epoch: float) -> datetime:
    """Give a time as Kubernetes writes it, to the second."""
    return datetime.fromtimestamp(int(epoch), UTC)


def stamp(epoch: float) -> str:
    """Write a time: 2026-12-01T12:03:04Z."""
    return moment(epoch).isoformat().replace("+00:00", "Z")
