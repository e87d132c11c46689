"""The resources that this operator knows, and to which of them a name belongs."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semaphore_operator.models import Resource

MEMORY: Final = 600.0
"""Seconds for which a deleted resource is remembered as such: longer than any listing or event is under way."""


class Registry:
    """Resources by uid, as last seen; filled by the watch in one thread and by the sweep's listings in another.

    What is late changes nothing: neither an older generation, nor a listing that still shows what was deleted since.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, Resource] = {}
        self._named: defaultdict[str, set[str]] = defaultdict(set)
        self._gone: dict[str, float] = {}
        self._written: set[str] = set()

    def put(self, resource: Resource) -> None:
        """Remember a resource."""
        with self._lock:
            self._put(resource)

    def remove(self, uid: str) -> None:
        """Forget a resource for good."""
        with self._lock:
            self._remove(uid)

    def replace(self, listed: Iterable[Resource], before: frozenset[str]) -> list[Resource]:
        """Take over what a listing has shown; give those that it no longer shows.

        Args:
            listed: every resource that there is.
            before: `uids` when the listing began; what has come since is not missing in it.
        """
        with self._lock:
            forgotten = time.monotonic() - MEMORY
            self._gone = {uid: when for uid, when in self._gone.items() if when > forgotten}
            present = set()
            for resource in listed:
                self._put(resource)
                present.add(resource.uid)
            gone = [self._known[uid] for uid in before if uid in self._known and uid not in present]
            for resource in gone:
                self._remove(resource.uid)
        return gone

    def uids(self) -> frozenset[str]:
        """Give the uids of all resources."""
        with self._lock:
            return frozenset(self._known)

    def all(self) -> list[Resource]:
        """Give every resource."""
        with self._lock:
            return list(self._known.values())

    def get(self, uid: str) -> Resource | None:
        """Give the resource of this uid."""
        with self._lock:
            return self._known.get(uid)

    def owner(self, semaphore: str) -> Resource | None:
        """Give the resource that a name belongs to."""
        with self._lock:
            return owner(self._known[uid] for uid in self._named.get(semaphore, ()))

    def is_named(self, semaphore: str) -> bool:
        """Say whether a resource has this name, one that is being deleted included."""
        with self._lock:
            return semaphore in self._named

    def note_written(self, uid: str) -> None:
        """Remember that Redis has had this resource's config."""
        with self._lock:
            self._written.add(uid)

    def was_written(self, resource: Resource) -> bool:
        """Say whether Redis has had its config, as far as this process or the resource's status knows."""
        return resource.status.observed_generation > 0 or resource.uid in self._written

    def _put(self, resource: Resource) -> None:
        known = self._known.get(resource.uid)
        if resource.uid in self._gone or (known is not None and known.generation > resource.generation):
            return
        self._known[resource.uid] = resource
        self._named[resource.semaphore].add(resource.uid)

    def _remove(self, uid: str) -> None:
        self._gone[uid] = time.monotonic()
        self._written.discard(uid)
        if known := self._known.pop(uid, None):
            self._named[known.semaphore].discard(uid)
            if not self._named[known.semaphore]:
                del self._named[known.semaphore]


def owner(claims: Iterable[Resource]) -> Resource | None:
    """Decide between resources of one name: the oldest that is not being deleted has it, then the lowest uid."""
    living = (resource for resource in claims if resource.deleted is None)
    return min(living, key=lambda resource: (resource.created, resource.uid), default=None)
