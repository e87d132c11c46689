"""Redis's side of a sweep: housekeeping, a look at each semaphore, and the repair of configs that differ."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from distributed_semaphore.protocol import Snapshot, inspect, reap
from semaphore_operator.models import NAMED
from semaphore_operator.reconcile import write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distributed_semaphore.protocol.address import AnyRedis
    from semaphore_operator.models import Resource
    from semaphore_operator.registry import Registry

log = logging.getLogger(__name__)

ROUNDS: Final = 20
"""Calls of `reap` in a row that a sweep makes for one semaphore; the next sweep goes on."""


async def observe(
    redis: AnyRedis, resources: Sequence[Resource], registry: Registry, epoch: int
) -> tuple[list[Snapshot | Exception], list[Resource]]:
    """Look at the semaphores of these resources, after housekeeping, and write the configs that differ.

    A few round trips for all of them, and two for each config that is written.

    Returns:
        For each resource its snapshot, or why there is none; and the resources whose config Redis had lost.

    Raises:
        redis.exceptions.RedisError, OSError: Redis does not answer.
    """
    names = [resource.semaphore for resource in resources]
    await _keep_house(redis, names)
    found = await inspect(redis, names, NAMED)
    lost = []
    for i, resource in enumerate(resources):
        seen = found[i]
        config = seen.config if isinstance(seen, Snapshot) else None
        known = registry.get(resource.uid)
        gone = known is None or known.deleted is not None  # its config is missing because it was taken away
        if gone or config == resource.config(epoch) or isinstance(seen, RedisError):
            continue
        was_written = registry.was_written(resource)
        try:
            written = await write(resource, registry, redis, epoch)
        except (RedisConnectionError, RedisTimeoutError):
            raise
        except RedisError as error:  # this semaphore's keys only
            found[i] = error
            continue
        if written:
            if isinstance(seen, Snapshot) and config is None and was_written:
                lost.append(resource)
            [found[i]] = await inspect(redis, [resource.semaphore], NAMED)
    return found, lost


async def _keep_house(redis: AnyRedis, names: Sequence[str]) -> None:
    """Take back expired slots and grant, in as many rounds as it takes."""
    behind = names
    for _ in range(ROUNDS):
        if not behind:
            return
        more = await reap(redis, behind)
        behind = [name for name, again in zip(behind, more, strict=True) if again]
    log.warning("housekeeping goes on in the next sweep: %s", ", ".join(behind[:5]))
