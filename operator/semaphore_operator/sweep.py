"""The sweep: one look at every semaphore, and what follows from it: repairs, status, Events, metrics.

Level-triggered: whatever was missed, the next sweep sees the state as it is. Redis and the API server may each be away;
the sweep goes on with what it has.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from distributed_semaphore.protocol import Snapshot, inspect, reap
from semaphore_operator.conditions import QUEUE_STUCK
from semaphore_operator.kube import Kube, KubeError
from semaphore_operator.models import NAMED, Resource, Status
from semaphore_operator.reconcile import write
from semaphore_operator.registry import Registry, owners
from semaphore_operator.status import clean, observed, unobserved
from semaphore_operator.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from redis.asyncio import Redis

    from semaphore_operator.settings import Settings

log = logging.getLogger(__name__)

BATCH: Final = 500
"""Semaphores of one pipeline."""
LIST_EVERY: Final = 60.0
"""Seconds between two listings, which find what the watch has missed."""
REDIS_PATIENCE: Final = 10.0
"""Seconds that one look at Redis may take."""
MOST_PATCHES: Final = 200
"""Status writes of one sweep; changed conditions go first."""
PARALLEL_PATCHES: Final = 10


@dataclass(frozen=True, slots=True)
class Seen:
    """What the last look at one semaphore has shown."""

    resource: Resource
    snapshot: Snapshot | None
    """None: Redis could not be asked, or the name belongs to another resource."""
    status: Status


@dataclass(slots=True)
class Record:
    """What the operator has done and seen: the source of metrics and probes."""

    seen: dict[str, Seen] = field(default_factory=dict)
    redis_up: bool = False
    kube_up: bool = False
    finished: float = field(default_factory=time.monotonic)
    duration: float = 0.0
    sweeps: int = 0
    patches: int = 0
    restored: int = 0
    errors: dict[str, int] = field(default_factory=lambda: {"redis": 0, "kube": 0})


class Sweep:
    """Looks at every semaphore each period, and at a changed one at once."""

    def __init__(self, settings: Settings, registry: Registry, kube: Kube) -> None:
        self.record = Record()
        self._settings = settings
        self._registry = registry
        self._kube = kube
        self._store = Store(settings)
        self._listed = float("-inf")
        self._said: dict[str, str] = {}
        self._written: dict[str, float] = {}
        self._granted: dict[str, tuple[float, int]] = {}
        self._changed: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def notice(self, resource: Resource, event: tuple[str, str] | None) -> None:
        """Look at a resource soon, or write an Event (reason, message) on it; may be called from any thread."""
        self._loop.call_soon_threadsafe(self._noticed, resource, event)

    def _noticed(self, resource: Resource, event: tuple[str, str] | None) -> None:
        if event:
            reason, message = event
            task = self._kube.event(resource, warning=True, reason=reason, message=message, action="Delete")
            self._loop.create_task(task)
        self._changed[resource.uid] = None
        self._wake.set()

    async def run(self) -> None:
        """Sweep until cancelled."""
        following = 0.0
        try:
            while True:
                if time.monotonic() >= following:
                    following = time.monotonic() + self._settings.sweep
                    await self._whole()
                elif self._changed:
                    changed, self._changed = self._changed, {}
                    await self._look([resource for resource in self._registry.all() if resource.uid in changed])
                self._wake.clear()
                try:
                    async with asyncio.timeout(following - time.monotonic()):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        finally:
            await self._store.close()

    async def _whole(self) -> None:
        start = time.monotonic()
        self._changed.clear()
        if start - self._listed >= LIST_EVERY or not self.record.kube_up:
            await self._list()
        resources = self._registry.all()
        await self._look(resources)
        present = {resource.uid for resource in resources}
        for remembered in (self.record.seen, self._written, self._granted):
            for uid in [uid for uid in remembered if uid not in present]:
                del remembered[uid]
        self.record.finished = time.monotonic()
        self.record.duration = self.record.finished - start
        self.record.sweeps += 1

    async def _list(self) -> None:
        try:
            self._registry.replace(await self._kube.list(self._settings.namespaces))
        except KubeError as error:
            self.record.kube_up = False
            self._complain("kube", str(error))
        else:
            self.record.kube_up = True
            self._said.pop("kube", None)
            self._listed = time.monotonic()

    async def _look(self, resources: Sequence[Resource]) -> None:
        belongs = owners(self._registry.all())
        served = [r for r in resources if r.deleted is None and belongs[r.semaphore].uid == r.uid]
        fresh: list[Seen] = []
        try:
            redis = await self._store.redis()
            for start in range(0, len(served), BATCH):
                batch = served[start : start + BATCH]
                async with asyncio.timeout(REDIS_PATIENCE):
                    snapshots = await self._snapshots(redis, batch)
                fresh += [self._observed(r, snapshot) for r, snapshot in zip(batch, snapshots, strict=True)]
            if not served:
                await redis.ping()
        except (RedisError, OSError, TimeoutError, ValueError) as error:
            self.record.redis_up = False
            self._complain("redis", clean(error))
            now = datetime.now(UTC).replace(microsecond=0)
            done = {seen.resource.uid for seen in fresh}
            fresh += [Seen(r, None, unobserved(r, error, now)) for r in served if r.uid not in done]
        else:
            self.record.redis_up = True
            self._said.pop("redis", None)
        for r in resources:
            if r.deleted is None and (winner := belongs[r.semaphore]).uid != r.uid and winner.uid in self.record.seen:
                snapshot = self.record.seen[winner.uid].snapshot
                if snapshot is not None:
                    fresh.append(Seen(r, None, observed(r, snapshot, winner, None)))
        self.record.seen.update((seen.resource.uid, seen) for seen in fresh)
        await self._write(fresh)

    async def _snapshots(self, redis: Redis, batch: Sequence[Resource]) -> list[Snapshot]:
        """Give each semaphore's snapshot, after housekeeping and repair."""
        names = [resource.semaphore for resource in batch]
        behind = names
        while behind:
            more = await reap(redis, behind)
            behind = [name for name, again in zip(behind, more, strict=True) if again]
        snapshots = _all(await inspect(redis, names, NAMED))
        for i, (resource, snapshot) in enumerate(zip(batch, snapshots, strict=True)):
            epoch = self._settings.epoch
            if snapshot.config != resource.config(epoch) and await write(resource, redis, epoch):
                if snapshot.config is None and resource.status.observed_generation:
                    await self._restored(resource)
                [snapshots[i]] = _all(await inspect(redis, [resource.semaphore], NAMED))
        return snapshots

    async def _restored(self, resource: Resource) -> None:
        self.record.restored += 1
        message = (
            "Redis had lost the configuration (flushed, or restarted empty?); it was written again. Living holders put "
            "their slots back; nothing else is granted until one lease has passed"
        )
        log.warning("%s: %s", resource.semaphore, message)
        await self._kube.event(resource, warning=True, reason="ConfigRestored", message=message, action="Restore")

    def _observed(self, resource: Resource, snapshot: Snapshot) -> Seen:
        granted = snapshot.counters.granted
        then, before = self._granted.get(resource.uid, (snapshot.server_time, granted))
        throughput = None
        if (elapsed := snapshot.server_time - then) > 0:
            throughput = max(0, granted - before) / elapsed
        self._granted[resource.uid] = snapshot.server_time, granted
        return Seen(resource, snapshot, observed(resource, snapshot, None, throughput))

    async def _write(self, fresh: Iterable[Seen]) -> None:
        """Write the statuses that have changed: at once where a condition has, else at most once a period."""
        now = time.monotonic()
        changed = [seen for seen in fresh if seen.status != seen.resource.status]
        urgent = [seen for seen in changed if _flipped(seen)]
        patient = [
            seen
            for seen in changed
            if not _flipped(seen) and now - self._written.get(seen.resource.uid, float("-inf")) >= self._settings.patch
        ]
        patient.sort(key=lambda seen: self._written.get(seen.resource.uid, 0.0))
        turnstile = asyncio.Semaphore(PARALLEL_PATCHES)

        async def write(seen: Seen) -> None:
            async with turnstile:
                await self._write_one(seen)

        await asyncio.gather(*(write(seen) for seen in (urgent + patient)[:MOST_PATCHES]))

    async def _write_one(self, seen: Seen) -> None:
        resource = seen.resource
        try:
            await self._kube.write_status(resource, seen.status)
        except KubeError as error:
            self._complain("kube", str(error))
            return
        self.record.patches += 1
        self._written[resource.uid] = time.monotonic()
        self._registry.put(resource.model_copy(update={"status": seen.status}))
        before = {condition.type: condition.status for condition in resource.status.conditions}
        for condition in seen.status.conditions:
            if condition.type != QUEUE_STUCK:
                continue
            if condition.status == "True" and before.get(condition.type) != "True":
                await self._kube.event(
                    resource, warning=True, reason=condition.reason, message=condition.message, action="Watch"
                )
            elif condition.status == "False" and before.get(condition.type) == "True":
                await self._kube.event(
                    resource, warning=False, reason="QueueMoving", message="slots are granted again", action="Watch"
                )

    def _complain(self, kind: str, text: str) -> None:
        """Count a failure; log it when it is a new one."""
        self.record.errors[kind] += 1
        if self._said.get(kind) != text:
            self._said[kind] = text
            log.error("%s; trying again every %gs", text, self._settings.sweep)


def _all(snapshots: Sequence[Snapshot | RedisError]) -> list[Snapshot]:
    for snapshot in snapshots:
        if isinstance(snapshot, RedisError):
            raise snapshot
    return [snapshot for snapshot in snapshots if isinstance(snapshot, Snapshot)]


def _flipped(seen: Seen) -> bool:
    def said(status: Status) -> list[tuple[str, str, str]]:
        return [(condition.type, condition.status, condition.reason) for condition in status.conditions]

    changed_spec = seen.status.observed_generation != seen.resource.status.observed_generation
    return changed_spec or said(seen.status) != said(seen.resource.status)
