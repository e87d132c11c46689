"""Frees what pods have held that are gone: level-triggered, from who Redis says is a client and which pods live.

A client counts as gone when its pod had the label, as was seen here or as the client says itself (so a restart of the
operator overlooks nobody), is not among the living, and a read of that one pod confirms it. A client without
label, or of another cluster, is never judged by a pod that is not there.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from distributed_semaphore.protocol import evict
from semaphore_operator.events import pods_gone
from semaphore_operator.kube import KubeError
from semaphore_operator.status import clean
from semaphore_operator.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from distributed_semaphore.protocol.address import AnyRedis
    from semaphore_operator.models import Resource
    from semaphore_operator.pods import Pods
    from semaphore_operator.record import Record
    from semaphore_operator.registry import Registry
    from semaphore_operator.settings import Settings
    from semaphore_operator.sweep import Sweep

log = logging.getLogger(__name__)

EVERY: Final = 60.0
"""Longest time between two looks: who has taken a slot since its pod went is found by then."""
REST: Final = 9
"""Times of its own duration that a look is followed by rest, so that pods that come and go cost a tenth of a CPU."""
SHORTEST_REST: Final = 0.1
LONGEST_REST: Final = 5.0
"""Bound of that rest: on a loaded machine one look may take seconds."""
BATCH: Final = 500
"""Semaphores of one pipeline."""
PARALLEL: Final = 10
NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]*")


@dataclass(frozen=True, slots=True)
class Client:
    """A pod as its process has given it."""

    namespace: str
    pod: str
    uid: str
    labelled: bool


class Departed:
    """Looks for clients whose pods are gone, when pods have vanished and now and then."""

    def __init__(self, settings: Settings, pods: Pods, registry: Registry, sweep: Sweep, record: Record) -> None:
        self._label = settings.pods
        self._pods = pods
        self._registry = registry
        self._sweep = sweep
        self._record = record
        self._store = Store(settings)
        self._gone: set[str] = set()

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(EVERY):
                        await self._pods.changed.wait()
                await self._sweep.listed.wait()  # else no semaphore is known yet
                self._pods.changed.clear()
                start = time.monotonic()
                try:
                    await self.look()
                except (KubeError, RedisError, OSError, ValueError) as error:
                    self._record.failed("pods", f"slots of pods that are gone are not freed: {clean(error)}")
                    self._pods.changed.set()
                    await asyncio.sleep(1)
                rest = REST * (time.monotonic() - start)
                await asyncio.sleep(min(max(SHORTEST_REST, rest), LONGEST_REST))
        finally:
            await self._store.close()

    async def look(self) -> None:
        """Free what clients hold and wait for whose pods are gone.

        Raises:
            redis.exceptions.RedisError, OSError, ValueError: Redis does not answer.
            KubeError: the API server does not.
        """
        redis = await self._store.redis()
        names = {each.semaphore for each in self._registry.all()}
        semaphores = [owner for name in sorted(names) if (owner := self._registry.owner(name)) is not None]
        suspects: defaultdict[Client, list[Resource]] = defaultdict(list)
        for start in range(0, len(semaphores), BATCH):
            batch = semaphores[start : start + BATCH]
            for resource, clients in zip(batch, await self._clients(redis, batch), strict=True):
                for each in filter(self._is_suspect, clients):
                    suspects[each].append(resource)
        await self._confirm(suspects)
        gone: defaultdict[str, list[Client]] = defaultdict(list)
        for suspect, resources in suspects.items():
            for resource in resources if suspect.uid in self._gone else ():
                gone[resource.uid].append(suspect)
        for resource in (each for each in semaphores if each.uid in gone):
            await self._free(redis, resource, gone[resource.uid])

    async def _clients(self, redis: AnyRedis, semaphores: Iterable[Resource]) -> list[set[Client]]:
        """Give the pods that are clients of each semaphore; one round trip."""
        pipeline = redis.pipeline(transaction=False)
        for resource in semaphores:
            pipeline.hgetall(f"{resource.keys.prefix}identities")
        found = await pipeline.execute(raise_on_error=False)
        return [set() if isinstance(each, Exception) else self._read(each.values()) for each in found]

    def _read(self, identities: Iterable[str | bytes]) -> set[Client]:
        clients = set()
        for text in identities:
            try:
                said = json.loads(text)
                namespace, pod, uid = (str(said[field]) for field in ("namespace", "pod", "uid"))
            except (ValueError, KeyError, TypeError):
                continue  # whatever a client has written must not end this
            if NAME.fullmatch(namespace) and NAME.fullmatch(pod):
                clients.add(Client(namespace, pod, uid, said.get("client") == self._label))
        return clients

    def _is_suspect(self, client: Client) -> bool:
        had_label = client.labelled or self._pods.vanished(client.uid)
        return had_label and self._pods.serves(client.namespace) and not self._pods.lives(client.uid)

    async def _confirm(self, suspects: Iterable[Client]) -> None:
        """Remember whose pod is gone for certain; a uid does not come back."""
        self._gone &= {each.uid for each in suspects}
        waiting = iter([each for each in suspects if each.uid not in self._gone])

        async def one_after_another() -> None:
            for each in waiting:
                if await self._pods.is_gone(each.namespace, each.pod, each.uid):
                    self._gone.add(each.uid)

        await asyncio.gather(*(one_after_another() for _ in range(PARALLEL)))

    async def _free(self, redis: AnyRedis, resource: Resource, clients: Iterable[Client]) -> None:
        taken: Counter[str] = Counter()
        freed = []
        for each in clients:
            slots, places = await evict(redis, resource.semaphore, "uid", each.uid)
            if slots or places:
                taken.update(slots=slots, places=places)
                freed.append(f"{each.namespace}/{each.pod}")
        if freed:
            self._record.freed["pod"] += taken.total()
            announcement = pods_gone(sorted(freed), taken["slots"], taken["places"])
            log.info("%s: %s", resource.semaphore, announcement.message)
            self._sweep.announce(resource, announcement)
            self._sweep.notice(resource.uid)
