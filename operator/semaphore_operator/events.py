"""Which Events are worth writing: pure functions of the conditions before and after, one Event a situation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from semaphore_operator.conditions import ALERTS, INVALID_SPEC, READY, RESOURCE_CONFLICT, STUCK, WANTED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from semaphore_operator.models import Condition, Resource
    from semaphore_operator.orders import Order

CONFIG_RESTORED: Final = "ConfigRestored"
RECLAIM_OPENED: Final = "ReclaimOpened"
ENTRIES_REPAIRED: Final = "EntriesRepaired"
KEYS_LEFT: Final = "KeysLeft"
PODS_GONE: Final = "PodsGone"
FORCE_RELEASED: Final = "ForceReleased"
RELEASE_REFUSED: Final = "ReleaseRefused"

NAMED: Final = 10
"""Pods that one Event names."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """An Event before it is written."""

    warning: bool
    reason: str
    message: str
    action: str
    """What the operator was doing."""


def announcements(before: Iterable[Condition], after: Iterable[Condition]) -> Iterator[Announcement]:
    """Give what a change of conditions is worth saying: an alert that begins or ends, a bad name or spec."""
    was = {condition.type: condition for condition in before}
    for condition in after:
        earlier = was.get(condition.type)
        same = earlier is not None and (earlier.status, earlier.reason) == (condition.status, condition.reason)
        if condition.type in ALERTS and condition.status == "True" and not same:
            warning = condition.reason not in WANTED
            yield Announcement(warning, condition.reason, condition.message, "Watch")
        elif _over(condition, earlier):
            yield Announcement(False, condition.reason, condition.message, "Watch")  # noqa: FBT003
        elif condition.type == READY and condition.reason in {RESOURCE_CONFLICT, INVALID_SPEC} and not same:
            yield Announcement(True, condition.reason, condition.message, "Configure")  # noqa: FBT003


def _over(condition: Condition, earlier: Condition | None) -> bool:
    """Say whether an alert has ended; one that has become a stuck queue goes on under that name."""
    if condition.type not in ALERTS or earlier is None or earlier.status != "True":
        return False
    return condition.status == "False" and condition.reason != STUCK


def config_restored() -> Announcement:
    """Say that Redis had lost the config."""
    return Announcement(
        warning=True,
        reason=CONFIG_RESTORED,
        message="Redis had lost the configuration (flushed, or restarted empty?); it was written again. Living holders "
        "put their slots back; nothing else is granted until one lease has passed",
        action="Configure",
    )


def reclaim_opened() -> Announcement:
    """Say that another run of Redis may have lost the last writes."""
    return Announcement(
        warning=True,
        reason=RECLAIM_OPENED,
        message="Redis was restarted, or another server took its place, and may have lost the last grants. Living "
        "holders put their slots back; nothing else is granted until one lease has passed",
        action="Configure",
    )


def entries_repaired(repairs: Mapping[str, int]) -> Announcement:
    """Say that keys in Redis disagreed; no script leaves them so."""
    kinds = ", ".join(f"{kind}: {number}" for kind, number in sorted(repairs.items()))
    return Announcement(
        warning=True,
        reason=ENTRIES_REPAIRED,
        message=f"keys in Redis that disagreed were put right ({kinds}): changed by hand, evicted (maxmemory-policy "
        "must be noeviction), or restored from an old dump? If not, please report it as a fault",
        action="Audit",
    )


def keys_left(resource: Resource, error: str) -> Announcement:
    """Say that a resource was deleted while Redis could not be reached."""
    pattern = f"{resource.keys.prefix}*"
    return Announcement(
        warning=True,
        reason=KEYS_LEFT,
        message=f"deleted without Redis, which did not answer ({error}). If it comes back with its data, remove what "
        f"is left: redis-cli --scan --pattern '{pattern}' | xargs redis-cli unlink",
        action="Delete",
    )


def pods_gone(pods: Sequence[str], slots: int, places: int) -> Announcement:
    """Say that pods have ended or were deleted with slots or places in the queue."""
    named = ", ".join(pods[:NAMED]) + (f" and {len(pods) - NAMED} more" if len(pods) > NAMED else "")
    return Announcement(
        warning=False,
        reason=PODS_GONE,
        message=f"freed {slots} slots and {places} places in the queue, whose pods have ended or were deleted: {named}",
        action="Free",
    )


def force_released(order: Order, freed: int, whom: str) -> Announcement:
    """Say that somebody had slots taken away."""
    return Announcement(
        warning=False,
        reason=FORCE_RELEASED,
        message=f"freed {freed} slots and places of {whom}, who is told; {_asked(order)}",
        action="Release",
    )


def release_refused(order: Order, why: str) -> Announcement:
    """Say why nothing was taken away."""
    return Announcement(warning=True, reason=RELEASE_REFUSED, message=f"{_asked(order)}: {why}", action="Release")


def _asked(order: Order) -> str:
    return f"{order.by or 'somebody'} has asked to release {order.text[:300]!r}"
