"""Carries out orders to take slots away (see `orders`): once each, by the leader, and with an Event in any case.

The annotation is removed before anything is taken, under the condition that it is still the same: so of two processes
that see an order only one carries it out. A crash between the two leaves it undone, without an Event.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from distributed_semaphore.protocol import evict, revoke
from distributed_semaphore.protocol.snapshot import client_of
from semaphore_operator.conditions import who
from semaphore_operator.events import force_released, release_refused
from semaphore_operator.kube import KubeError
from semaphore_operator.orders import FORMS
from semaphore_operator.status import clean
from semaphore_operator.store import Store

if TYPE_CHECKING:
    from distributed_semaphore.protocol.address import AnyRedis
    from semaphore_operator.events import Announcement
    from semaphore_operator.kube import Kube
    from semaphore_operator.models import Resource
    from semaphore_operator.orders import Order, Target
    from semaphore_operator.record import Record
    from semaphore_operator.registry import Registry
    from semaphore_operator.settings import Settings
    from semaphore_operator.sweep import Sweep

log = logging.getLogger(__name__)

PAUSE: Final = 2.0
"""Seconds until the next attempt after a failure."""


class Release:
    """Carries out the orders that the watch hands over."""

    def __init__(self, settings: Settings, registry: Registry, sweep: Sweep, kube: Kube, record: Record) -> None:
        self._registry = registry
        self._sweep = sweep
        self._kube = kube
        self._record = record
        self._store = Store(settings)
        self._ordered: dict[str, Resource] = {}
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def take(self, resource: Resource) -> None:
        """Note the order that stands in a resource; may be called from any thread."""
        self._loop.call_soon_threadsafe(self._taken, resource)

    def _taken(self, resource: Resource) -> None:
        self._ordered[resource.uid] = resource
        self._wake.set()

    async def run(self) -> None:
        """Carry out orders until cancelled; one that Redis or the API server is in the way of waits."""
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                for uid, resource in list(self._ordered.items()):
                    try:
                        await self._carry_out(resource)
                    except (KubeError, RedisError, OSError, ValueError) as error:
                        self._record.failed("release", f"{resource.semaphore}: no release yet: {clean(error)}")
                        self._wake.set()
                    else:
                        if self._ordered.get(uid) is resource:
                            del self._ordered[uid]
                if self._wake.is_set():
                    await asyncio.sleep(PAUSE)
        finally:
            await self._store.close()

    async def _carry_out(self, resource: Resource) -> None:
        redis = await self._store.redis()
        await redis.ping()
        order = resource.order
        if order is None or not await self._kube.take_order(resource, order):
            return  # withdrawn, or another has carried it out
        said = await self._done(redis, resource, order)
        log.info("%s: %s", resource.semaphore, said.message)
        self._sweep.announce(resource, said)
        self._sweep.notice(resource.uid)

    async def _done(self, redis: AnyRedis, resource: Resource, order: Order) -> Announcement:
        """Take away what the order names; give what is to be said of it."""
        if (target := order.target()) is None:
            return release_refused(order, f"the annotation must be {FORMS}")
        owner = self._registry.owner(resource.semaphore)
        if owner is not None and owner.uid != resource.uid:
            return release_refused(order, f"{owner.name} has the name")
        try:
            freed, whom = await take_away(redis, resource, target)
        except (RedisError, OSError) as error:
            return release_refused(order, f"Redis failed, so part of it may be done: {clean(error)}")
        if not freed:
            return release_refused(order, "it neither holds nor waits; kubectl describe shows who does")
        self._record.freed["order"] += freed
        return force_released(order, freed, whom)


async def take_away(redis: AnyRedis, resource: Resource, target: Target) -> tuple[int, str]:
    """Free what a target holds and waits for; give how much that was, and whom it was taken from.

    Raises:
        redis.exceptions.RedisError, OSError: Redis does not answer.
    """
    name, prefix = resource.semaphore, resource.keys.prefix
    if target.kind == "pod":
        slots, places = await evict(redis, name, "pod", target.value, target.namespace)
        return slots + places, f"pod {target.namespace}{'/' if target.namespace else ''}{target.value}"
    tokens = [target.value]
    if target.kind == "fence":
        found: Any = await redis.zrangebyscore(f"{prefix}grants", target.value, target.value)
        tokens = [each.decode() if isinstance(each, bytes) else each for each in found]
    whom = "nobody"
    for token in tokens:
        identity = None
        with suppress(ValueError, TypeError):  # whatever a client has written there
            identity = json.loads(await redis.hget(f"{prefix}identities", client_of(token)) or "")
        whom = who(identity if isinstance(identity, dict) else {})
    return await revoke(redis, name, tokens) if tokens else 0, whom
