"""Configs in Redis that an operator has written and no resource stands for: found bit by bit, reported, never removed.

They are what `deletionPolicy: Retain` leaves, or a deletion while Redis was away; or they are another operator's, of
a second Kubernetes cluster on the same Redis.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from redis.asyncio import RedisCluster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distributed_semaphore.protocol.address import AnyRedis
    from semaphore_operator.registry import Registry

log = logging.getLogger(__name__)

STEP: Final = 1000
"""Keys that one sweep looks at."""
_BEGIN, _END = "sem:{", "}:config"


class Leftovers:
    """Walks through the keys of Redis, some in each sweep."""

    def __init__(self, namespaces: Sequence[str]) -> None:
        self._namespaces = frozenset(namespaces)
        self._cursor = 0
        self._found: set[str] = set()
        self.names: frozenset[str] = frozenset()
        """Semaphores without resource, as the last complete walk has found them."""

    async def look(self, redis: AnyRedis, registry: Registry) -> None:
        """Go one step further; two round trips. A cluster is left out.

        Raises:
            redis.exceptions.RedisError, OSError: Redis does not answer.
        """
        if isinstance(redis, RedisCluster):
            return
        self._cursor, keys = await redis.scan(self._cursor, match=f"{_BEGIN}*{_END}", count=STEP)
        unknown = [key for key in map(_text, keys) if self._concerns(_name(key), registry)]
        if unknown:
            pipeline = redis.pipeline(transaction=False)
            for key in unknown:
                pipeline.hget(key, "uid")
            uids = await pipeline.execute(raise_on_error=False)
            self._found.update(
                _name(key) for key, uid in zip(unknown, uids, strict=True) if uid and not isinstance(uid, Exception)
            )
        if not self._cursor:
            found, self._found = frozenset(self._found), set()
            # What was deleted, or has got a resource, while the walk went on is none.
            if new := sorted(found - self.names):
                shown = ", ".join(new[:5])
                log.warning("%d semaphores in Redis have no resource here, like %s", len(new), shown)
            self.names = found

    def _concerns(self, name: str, registry: Registry) -> bool:
        namespace = name.partition("/")[0]
        served = not self._namespaces or namespace in self._namespaces
        return served and "/" in name and not registry.is_named(name)


def _name(key: str) -> str:
    return unquote(key[len(_BEGIN) : -len(_END)])


def _text(key: bytes | str) -> str:
    return key.decode() if isinstance(key, bytes) else key
