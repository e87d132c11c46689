"""Kubernetes' side of a sweep: writes the statuses that have changed, no more often than is good for the API server."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from semaphore_operator.events import announcements
from semaphore_operator.kube import KubeError, KubeUnreachableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from semaphore_operator.kube import Kube
    from semaphore_operator.models import Status
    from semaphore_operator.record import Record, Seen
    from semaphore_operator.registry import Registry

RATE: Final = 100.0
"""Status writes per second, of all resources together."""
BURST: Final = 500
"""Status writes at once, after a quiet time."""
PARALLEL: Final = 10


class Publisher:
    """Writes statuses: at most one a resource and period, at most `RATE` a second, changed conditions first."""

    def __init__(self, kube: Kube, registry: Registry, record: Record, period: float) -> None:
        self._kube = kube
        self._registry = registry
        self._record = record
        self._period = period
        self._written: dict[str, float] = {}
        self._allowed = float(BURST)
        self._counted = time.monotonic()

    async def publish(self, fresh: Iterable[Seen]) -> None:
        """Write the statuses that have changed and are due; what is left out comes with a later look."""
        now = time.monotonic()
        due = [
            seen
            for seen in fresh
            if seen.status != seen.resource.status
            and now - self._written.get(seen.resource.uid, float("-inf")) >= self._period
        ]
        due.sort(key=lambda seen: (not _flipped(seen), self._written.get(seen.resource.uid, 0.0)))
        due = due[: self._allowance(now, len(due))]
        # Counted from before the write, or every other sweep would come a moment too early.
        self._written.update((seen.resource.uid, now) for seen in due)
        await self._write(due)

    def forget(self, uid: str) -> None:
        """Forget a resource that has gone."""
        self._written.pop(uid, None)

    def _allowance(self, now: float, wanted: int) -> int:
        self._allowed = min(BURST, self._allowed + (now - self._counted) * RATE)
        self._counted = now
        granted = min(wanted, int(self._allowed))
        self._allowed -= granted
        return granted

    async def _write(self, due: Sequence[Seen]) -> None:
        waiting = iter(due)

        async def one_after_another() -> None:
            for seen in waiting:
                try:
                    await self._write_one(seen)
                except KubeUnreachableError as error:
                    self._record.failed("kube", str(error))
                    return
                except KubeError as error:
                    self._record.failed("kube", str(error))

        await asyncio.gather(*(one_after_another() for _ in range(min(PARALLEL, len(due)))))

    async def _write_one(self, seen: Seen) -> None:
        resource, before = seen.resource, seen.resource.status
        if not await self._kube.write_status(resource, seen.status):
            return
        self._record.patches += 1
        self._registry.put(resource.model_copy(update={"status": seen.status}))
        for announcement in announcements(before.conditions, seen.status.conditions):
            await self._kube.event(resource, announcement)


def _flipped(seen: Seen) -> bool:
    def said(status: Status) -> list[tuple[str, str, str]]:
        return [(condition.type, condition.status, condition.reason) for condition in status.conditions]

    changed_spec = seen.status.observed_generation != seen.resource.status.observed_generation
    return changed_spec or said(seen.status) != said(seen.resource.status)
