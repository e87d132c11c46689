"""One resource, made true in Redis: idempotent, in one fixed order, whatever called it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from distributed_semaphore.protocol import declare, forget
from semaphore_operator.models import DeletionPolicy

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from semaphore_operator.models import Resource
    from semaphore_operator.registry import Registry

log = logging.getLogger(__name__)


async def reconcile(resource: Resource, registry: Registry, redis: Redis, epoch: int) -> None:
    """Bring one resource to Redis, or take it away.

    1. note it; 2. a resource that is being deleted gives up its name; 3. the name belongs to the oldest resource;
    4. that one's config is written. Status is the sweep's affair.

    Raises:
        redis.exceptions.RedisError: Redis did not answer; calling again is right.
    """
    registry.put(resource)
    owner = registry.owner(resource.semaphore)
    if resource.deleted:
        if owner is not None:  # it takes over, and nobody loses a slot or a place
            await declare(redis, owner.semaphore, owner.config(epoch))
        elif resource.spec.deletion_policy is DeletionPolicy.DELETE:
            held = await forget(redis, resource.semaphore, resource.uid)
            log.info("%s deleted; %d slots are still held and go with their holders", resource.semaphore, held)
        registry.remove(resource.uid)
    elif owner is not None and owner.uid == resource.uid:
        written = await declare(redis, resource.semaphore, resource.config(epoch))
        if not written:
            log.warning("%s: Redis has a newer config than generation %d", resource.semaphore, resource.generation)
