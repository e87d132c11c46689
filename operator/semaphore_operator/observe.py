"""Redis's side of a sweep: housekeeping, a look at each semaphore, and the repair of configs that differ."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from distributed_semaphore.protocol import Snapshot, audit, inspect, reap
from semaphore_operator.models import NAMED
from semaphore_operator.reconcile import write

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distributed_semaphore.protocol.address import AnyRedis
    from semaphore_operator.models import Resource
    from semaphore_operator.registry import Registry
    from semaphore_operator.runs import Runs

log = logging.getLogger(__name__)

ROUNDS: Final = 20
"""Calls of `reap` in a row that a sweep makes for one semaphore; the next sweep goes on."""


@dataclass(slots=True)
class Look:
    """What a look at some semaphores has shown, and what had to be put right."""

    found: list[Snapshot | Exception]
    """For each resource its snapshot, or why there is none."""
    lost: list[Resource]
    """Resources whose config Redis had lost."""
    reopened: list[Resource]
    """Resources whose holders may put back what a restarted server may have lost."""
    repairs: dict[str, dict[str, int]]
    """Repairs of each kind (see `audit.lua`), by semaphore."""


async def observe(redis: AnyRedis, resources: Sequence[Resource], registry: Registry, runs: Runs, epoch: int) -> Look:
    """Look at the semaphores of these resources, after audit and housekeeping, and write the configs that differ.

    A few round trips for all of them, and two for each config that is written.

    Raises:
        redis.exceptions.RedisError, OSError: Redis does not answer.
    """
    names = [resource.semaphore for resource in resources]
    reopened = await runs.note(redis, resources)  # first: housekeeping grants
    repairs, refused = await _keep_house(redis, names)
    look = Look(await inspect(redis, names, NAMED), [], reopened, repairs)
    for i, resource in enumerate(resources):
        seen = look.found[i]
        config = seen.config if isinstance(seen, Snapshot) else None
        known = registry.get(resource.uid)
        gone = known is None or known.deleted is not None  # its config is missing because it was taken away
        if gone or isinstance(seen, RedisError):
            continue
        if config == resource.config(epoch):
            # Who looks may find all well where nothing can be written.
            look.found[i] = refused.get(resource.semaphore, seen)
            continue
        was_written = registry.was_written(resource)
        try:
            written = await write(resource, registry, redis, epoch)
        except (RedisConnectionError, RedisTimeoutError):
            raise
        except RedisError as error:  # this semaphore's keys only
            look.found[i] = error
            continue
        if written:
            runs.forget(resource.uid)
            if isinstance(seen, Snapshot) and config is None and was_written:
                look.lost.append(resource)
            [look.found[i]] = await inspect(redis, [resource.semaphore], NAMED)
    return look


async def _keep_house(redis: AnyRedis, names: Sequence[str]) -> tuple[dict[str, dict[str, int]], dict[str, RedisError]]:
    """Audit, take back expired slots and grant, in as many rounds as it takes.

    Returns:
        Repairs, and errors, by semaphore.
    """
    repairs: dict[str, dict[str, int]] = {}
    refused: dict[str, RedisError] = {}
    behind = []
    for name, audited in zip(names, await audit(redis, names), strict=True):
        if isinstance(audited, RedisError):
            refused[name] = audited
            continue
        again, repaired = audited
        if repaired:
            repairs[name] = repaired
        if again:
            behind.append(name)
    for _ in range(ROUNDS):
        if not behind:
            return repairs, refused
        more = await reap(redis, behind)
        behind = [name for name, again in zip(behind, more, strict=True) if again]
    log.warning("housekeeping goes on in the next sweep: %s", ", ".join(behind[:5]))
    return repairs, refused
