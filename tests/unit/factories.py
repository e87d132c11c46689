"""Resources and snapshots for tables of tests; times are seconds of the server's clock."""

from __future__ import annotations

from typing import Any

from distributed_semaphore.protocol import Counters, Holder, Snapshot, Waiter
from semaphore_operator.models import Resource

NOW = 1_800_000_000.0


def resource(called: str = "licensed-api", /, status: dict[str, Any] | None = None, **spec: Any) -> Resource:
    metadata = {
        "namespace": "payments",
        "name": called,
        "uid": spec.pop("uid", f"uid-{called}"),
        "generation": spec.pop("generation", 1),
        "creationTimestamp": spec.pop("created", "2027-01-15T08:00:00Z"),
    }
    if deleted := spec.pop("deleted", None):
        metadata["deletionTimestamp"] = deleted
    return Resource.read({"metadata": metadata, "spec": {"limit": 2, **spec}, "status": status or {}})


def holder(number: int = 1, since: float = NOW - 60, weight: int = 1, **identity: str) -> Holder:
    return Holder(
        token=f"alice.{number}.{weight}",
        fence=round(since * 1e6),
        expires_at=NOW + 30,
        weight=weight,
        identity=identity or {"pod": f"holder-{number}", "namespace": "payments"},
    )


def waiter(position: int = 1, since: float = NOW - 60, weight: int = 1, **identity: str) -> Waiter:
    return Waiter(
        token=f"bob.{position}.{weight}",
        position=position,
        since=since,
        weight=weight,
        identity=identity or {"pod": f"waiter-{position}", "namespace": "payments"},
    )


def snapshot(
    of: Resource, holders: tuple[Holder, ...] = (), waiters: tuple[Waiter, ...] = (), **fields: Any
) -> Snapshot:
    values: dict[str, Any] = {
        "server_time": NOW,
        "config": of.config(0),
        "held": sum(one.weight for one in holders),
        "holder_count": len(holders),
        "waiter_count": len(waiters),
        "holders": holders,
        "waiters": waiters,
        "counters": Counters(),
        "last_grant": max((one.since for one in holders), default=None),
        "last_release": None,
        "oldest_waiter_since": min((one.since for one in waiters), default=None),
    }
    return Snapshot(**{**values, **fields})
