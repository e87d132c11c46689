"""One resource, made true in Redis: idempotent, in one fixed order, whatever called it."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from distributed_semaphore.protocol import declare, forget
from semaphore_operator.models import DeletionPolicy

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from semaphore_operator.models import Resource
    from semaphore_operator.registry import Registry

log = logging.getLogger(__name__)


#: A resource younger than this (s) cannot have had holders under a config that Redis has lost since.
NEWBORN: Final = 5.0


async def write(resource: Resource, redis: Redis, epoch: int) -> bool:
    """Write a resource's config. If Redis has lost it, living holders get time to put their slots back first.

    That time is the longest lease that may have been in force. Fences go on beyond the highest that is known.

    Returns:
        False if Redis has a newer config.
    """
    config = resource.config(epoch)
    age = (datetime.now(UTC) - datetime.fromisoformat(resource.created)).total_seconds()
    before = round((resource.status.lease_seconds or 0) * 1000)
    return await declare(
        redis,
        resource.semaphore,
        config,
        reclaim_ms=max(config.lease_ms, before) if age > NEWBORN else 0,
        fence=max((holder.fence for holder in resource.status.held_by), default=0),
    )


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
            await write(owner, redis, epoch)
        elif resource.spec.deletion_policy is DeletionPolicy.DELETE:
            held = await forget(redis, resource.semaphore, resource.uid)
            log.info("%s deleted; %d slots are still held and go with their holders", resource.semaphore, held)
        registry.remove(resource.uid)
    elif owner is not None and owner.uid == resource.uid and not await write(resource, redis, epoch):
        log.warning("%s: Redis has a newer config than generation %d", resource.semaphore, resource.generation)
