"""The sweep: one look at every semaphore, and what follows from it: repairs, status, Events, metrics.

Level-triggered: whatever was missed, the next sweep sees the state as it is. Redis and the API server may each be away;
the sweep goes on with what it has.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from distributed_semaphore.protocol import Snapshot
from semaphore_operator.events import config_restored, entries_repaired, reclaim_opened
from semaphore_operator.kube import KubeError
from semaphore_operator.leftovers import Leftovers
from semaphore_operator.observe import observe
from semaphore_operator.publish import Publisher
from semaphore_operator.reconcile import withdraw
from semaphore_operator.record import Record, Seen
from semaphore_operator.runs import Runs
from semaphore_operator.status import clean, conflicting, observed, unobserved, unusable
from semaphore_operator.store import Store

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from distributed_semaphore.protocol.address import AnyRedis
    from semaphore_operator.events import Announcement
    from semaphore_operator.kube import Kube
    from semaphore_operator.models import Resource
    from semaphore_operator.observe import Look
    from semaphore_operator.registry import Registry
    from semaphore_operator.settings import Settings

log = logging.getLogger(__name__)

BATCH: Final = 500
"""Semaphores of one pipeline."""
LIST_EVERY: Final = 60.0
"""Seconds between two listings, which find what the watch has missed."""
PATIENCE: Final = 10.0
"""Seconds that one batch may take in Redis."""
LONGEST_BACK_OFF: Final = 3
"""Times of the period that pass between two attempts while Redis does not answer."""


class Sweep:
    """Looks at every semaphore each period, and at a changed one at once."""

    def __init__(self, settings: Settings, registry: Registry, kube: Kube, record: Record) -> None:
        self.listed = asyncio.Event()
        """Set while the resources can be listed: what the watch waits for."""
        self._settings = settings
        self._registry = registry
        self._kube = kube
        self._record = record
        self._store = Store(settings)
        self._publisher = Publisher(kube, registry, record, settings.patch)
        self._runs = Runs()
        self._leftovers = Leftovers(settings.namespaces)
        self._list_at = 0.0
        self._discovered = False
        self._redis_failures = 0
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    def notice(self, uid: str) -> None:
        """Look at a resource soon; may be called from any thread."""
        self._loop.call_soon_threadsafe(self._noticed, uid)

    def announce(self, resource: Resource, announcement: Announcement) -> None:
        """Write an Event; may be called from any thread."""
        self._loop.call_soon_threadsafe(self._announced, resource, announcement)

    def relist(self) -> None:
        """List with the next sweep, and not be `listed` until then."""
        self.listed.clear()
        self._list_at, self._discovered = 0.0, False

    async def run(self) -> None:
        """Sweep until cancelled."""
        following = 0.0
        try:
            while True:
                self._wake.clear()
                start = time.monotonic()
                if start >= following:
                    await self._guarded(self._whole())
                    following = start + self._pause()
                elif self._changed:
                    changed, self._changed = self._changed, set()
                    await self._guarded(self._some(changed))
                with suppress(TimeoutError):
                    async with asyncio.timeout(following - time.monotonic()):
                        await self._wake.wait()
        finally:
            await self._store.close()

    def _pause(self) -> float:
        period = self._settings.sweep
        if not self._redis_failures:
            return period
        return period * min(self._redis_failures, LONGEST_BACK_OFF) * random.uniform(0.9, 1.1)  # noqa: S311

    async def _guarded(self, part: Awaitable[None]) -> None:
        """One broken answer must not end the sweep."""
        try:
            await part
        except Exception as error:
            log.exception("a sweep was broken off")
            self._record.failed("sweep", f"{type(error).__name__}: {clean(error)}")

    async def _whole(self) -> None:
        start = time.monotonic()
        self._changed.clear()
        if start >= self._list_at:
            await self._list()
        resources = self._registry.all()
        await self._look(resources)
        await self._look_for_leftovers()
        for uid in self._record.seen.keys() - self._registry.uids():
            self._drop(uid)
        record = self._record
        record.finished = time.monotonic()
        record.duration = record.finished - start
        record.sweeps += 1
        if self._discovered:
            self.listed.set()

    async def _look_for_leftovers(self) -> None:
        if self._record.redis_up and self._record.kube_up:
            try:
                await self._leftovers.look(await self._store.redis(), self._registry)
            except (RedisError, OSError, ValueError) as error:
                self._record.failed("redis", f"leftovers cannot be looked for: {clean(error)}")
            else:
                self._record.leftovers = len(self._leftovers.names)

    async def _some(self, uids: set[str]) -> None:
        found = {uid: self._registry.get(uid) for uid in uids}
        for uid in (uid for uid, resource in found.items() if resource is None):
            self._drop(uid)
        await self._look([resource for resource in found.values() if resource is not None])

    def _drop(self, uid: str) -> None:
        self._record.seen.pop(uid, None)
        self._publisher.forget(uid)
        self._runs.forget(uid)

    async def _list(self) -> None:
        before = self._registry.uids()
        try:
            listed = await self._kube.list(self._settings.namespaces)
            self._discovered = self._discovered or await self._kube.discovered()
        except KubeError as error:
            self._record.kube_up = False
            self._record.failed("kube", str(error))
            self.relist()
            return
        self._record.kube_up = True
        self._record.went_well("kube")
        self._list_at = time.monotonic() + (LIST_EVERY if self._discovered else 0)
        for resource in self._registry.replace(listed, before):
            try:
                await withdraw(resource, self._registry, self._store, self._settings.epoch)
            except (RedisError, OSError, ValueError) as error:
                log.warning("%s was deleted unseen, and its keys are left: %s", resource.semaphore, clean(error))

    async def _look(self, resources: Sequence[Resource]) -> None:
        served: list[Resource] = []
        fresh: list[Seen] = []
        now = datetime.now(UTC).replace(microsecond=0)
        for resource in resources:
            owner = self._registry.owner(resource.semaphore)
            if resource.deleted is None and owner is not None:
                if owner.uid != resource.uid:
                    fresh.append(Seen(resource, None, conflicting(resource, owner, now)))
                elif resource.fault:
                    fresh.append(Seen(resource, None, unusable(resource, now)))
                else:
                    served.append(resource)
        try:
            redis = await self._store.redis()
            if not served:
                await redis.ping()
            for start in range(0, len(served), BATCH):
                async with asyncio.timeout(PATIENCE):
                    fresh += await self._observe(redis, served[start : start + BATCH], now)
        except (RedisError, OSError, TimeoutError, ValueError) as error:
            self._record.redis_up = False
            self._redis_failures += 1
            address = self._store.address
            why = ": ".join(filter(None, ("Redis cannot be used", address, clean(error))))
            self._record.failed("redis", f"{why}; its address is from {self._settings.redis_from}")
            done = {seen.resource.uid for seen in fresh}
            fresh += [Seen(r, None, unobserved(r, error, address, now)) for r in served if r.uid not in done]
        else:
            self._record.redis_up = True
            self._redis_failures = 0
            self._record.went_well("redis")
        self._record.seen.update((seen.resource.uid, seen) for seen in fresh)
        await self._publisher.publish(fresh)

    async def _observe(self, redis: AnyRedis, batch: Sequence[Resource], now: datetime) -> list[Seen]:
        look = await observe(redis, batch, self._registry, self._runs, self._settings.epoch)
        self._tell(look, batch)
        seen = []
        for resource, each in zip(batch, look.found, strict=True):
            if isinstance(each, Snapshot):
                status = observed(resource, each, self._throughput(resource.uid, each))
                seen.append(Seen(resource, each, status))
            else:
                self._record.errors["redis"] += 1
                earlier = self._record.seen.get(resource.uid)
                if earlier is None or earlier.snapshot is not None:
                    log.error("%s cannot be read or written in Redis: %s", resource.semaphore, clean(each))
                seen.append(Seen(resource, None, unobserved(resource, each, self._store.address, now)))
        return seen

    def _tell(self, look: Look, batch: Sequence[Resource]) -> None:
        """Count and announce what was put right."""
        for resource in look.lost:
            self._record.restored += 1
            log.warning("%s: Redis had lost the configuration; it was written again", resource.semaphore)
            self._announced(resource, config_restored())
        for resource in look.reopened:
            self._record.reopened += 1
            log.warning("%s: another run of Redis; holders have a lease to put slots back", resource.semaphore)
            self._announced(resource, reclaim_opened())
        for resource in batch:
            if repairs := look.repairs.get(resource.semaphore):
                self._record.repaired.update(repairs)
                log.warning("%s: keys that disagreed were put right: %s", resource.semaphore, repairs)
                self._announced(resource, entries_repaired(repairs))

    def _throughput(self, uid: str, snapshot: Snapshot) -> float | None:
        earlier = self._record.seen.get(uid)
        if earlier is None or earlier.snapshot is None or snapshot.server_time <= earlier.snapshot.server_time:
            return None
        granted = snapshot.counters.granted - earlier.snapshot.counters.granted
        return max(0, granted) / (snapshot.server_time - earlier.snapshot.server_time)

    def _noticed(self, uid: str) -> None:
        self._changed.add(uid)
        self._wake.set()

    def _announced(self, resource: Resource, announcement: Announcement) -> None:
        task = self._loop.create_task(self._kube.event(resource, announcement))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
