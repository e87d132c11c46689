"""One resource, made true in Redis: idempotent, in one fixed order, whatever called it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from distributed_semaphore.protocol import declare, forget
from semaphore_operator.models import DeletionPolicy

if TYPE_CHECKING:
    from distributed_semaphore.protocol.address import AnyRedis
    from semaphore_operator.models import Resource
    from semaphore_operator.registry import Registry
    from semaphore_operator.store import Store

log = logging.getLogger(__name__)


async def reconcile(resource: Resource, registry: Registry, store: Store, epoch: int) -> None:
    """Bring one resource to Redis, or take it away.

    1. note it; 2. one that is being deleted is withdrawn; 3. a name belongs to its oldest resource; 4. that one's
    config is written, if it can be. Status is the sweep's affair, and so is a resource that owns a name since another
    was deleted.

    Raises:
        redis.exceptions.RedisError, OSError: Redis did not answer; calling again is right.
        ValueError: as `withdraw`.
    """
    registry.put(resource)
    if resource.deleted is not None:
        await withdraw(resource, registry, store, epoch)
        registry.remove(resource.uid)
        return
    owner = registry.owner(resource.semaphore)
    if owner is not None and owner.uid == resource.uid and not resource.fault:
        await write(resource, registry, await store.redis(), epoch)


async def withdraw(resource: Resource, registry: Registry, store: Store, epoch: int) -> None:
    """Take a deleted resource's semaphore out of Redis, unless it is to be retained or another has its name.

    Raises:
        redis.exceptions.RedisError, OSError: Redis did not answer.
        ValueError: the address of Redis is missing or wrong, or a later leader has written the config: its affair.
    """
    if resource.spec.deletion_policy is DeletionPolicy.RETAIN or registry.owner(resource.semaphore) is not None:
        return
    held = await forget(await store.redis(), resource.semaphore, resource.uid, epoch)
    if held is None:
        raise ValueError(f"a later leader than that of epoch {epoch} has written the config")
    log.info("%s deleted; %d slots are still held and go with their holders", resource.semaphore, held)


async def write(resource: Resource, registry: Registry, redis: AnyRedis, epoch: int) -> bool:
    """Write a resource's config. If Redis has lost it, living holders get time to put their slots back first.

    That time is the longest lease that may have been in force. Fences go on beyond the highest that is known.

    Returns:
        False if Redis has a newer config.
    """
    config = resource.config(epoch)
    before = round((resource.status.lease_seconds or 0) * 1000)
    written = await declare(
        redis,
        resource.semaphore,
        config,
        reclaim_ms=max(config.lease_ms, before) if registry.was_written(resource) else 0,
        fence=max((holder.fence for holder in resource.status.held_by), default=0),
    )
    # The sweep and the watch work at the same time.
    known = registry.get(resource.uid)
    if not written:
        if (
            known is None or known.generation == resource.generation
        ):  # else the other has written a later edit meanwhile
            log.warning("%s: Redis has a newer config than generation %d", resource.semaphore, resource.generation)
        return False
    registry.note_written(resource.uid)
    # What was deleted while it was being written must not come back.
    deleted = known is None or known.deleted is not None
    if deleted and resource.spec.deletion_policy is DeletionPolicy.DELETE and not registry.owner(resource.semaphore):
        await forget(redis, resource.semaphore, resource.uid, epoch)
    return True
