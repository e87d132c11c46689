"""Which run of the Redis server each config was seen in: another one may have lost the last writes.

A server that starts from an old dump, or a replica that takes over, still has the configs; so nothing seems to be
missing, and yet slots granted last may be. Each config carries the run's id, so neither a restart of the
operator nor one of Redis while the operator is away is overlooked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from redis.asyncio import RedisCluster

from distributed_semaphore.protocol import mark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distributed_semaphore.protocol.address import AnyRedis
    from semaphore_operator.models import Resource

OPENED: Final = 2


class Runs:
    """Notes the present run with each config, once a run and config."""

    def __init__(self) -> None:
        self._run = ""
        self._noted: set[str] = set()

    async def note(self, redis: AnyRedis, resources: Sequence[Resource]) -> list[Resource]:
        """Note the run with the configs of these resources; one round trip, and one more where something is new.

        A cluster is left out: it has a run for each node.

        Returns:
            Those whose config was of another run: their holders now have one lease to put their slots back.

        Raises:
            redis.exceptions.RedisError, OSError: Redis does not answer.
        """
        if isinstance(redis, RedisCluster) or not resources:
            return []
        run = str((await redis.info("server"))["run_id"])
        if run != self._run:
            self._run = run
            self._noted.clear()
        fresh = [resource for resource in resources if resource.uid not in self._noted]
        if not fresh:
            return []
        calls = [(resource.semaphore, resource.uid, _window(resource)) for resource in fresh]
        opened = await mark(redis, calls, run)
        self._noted.update(resource.uid for resource, code in zip(fresh, opened, strict=True) if code)
        return [resource for resource, code in zip(fresh, opened, strict=True) if code == OPENED]

    def forget(self, uid: str) -> None:
        """Note it again: its config was written anew, or has gone."""
        self._noted.discard(uid)


def _window(resource: Resource) -> int:
    """Give the longest lease that may be in force (ms)."""
    return max(resource.config(0).lease_ms, round((resource.status.lease_seconds or 0) * 1000))
