"""The resources that this operator knows, and to which of them a name belongs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from semaphore_operator.models import Resource


class Registry:
    """Resources by uid, as last seen; filled by the watch in one thread and by the sweep's listing in another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, Resource] = {}

    def put(self, resource: Resource) -> None:
        """Remember a resource, unless a later generation of it is known."""
        with self._lock:
            known = self._known.get(resource.uid)
            if known is None or known.generation <= resource.generation:
                self._known[resource.uid] = resource

    def remove(self, uid: str) -> None:
        """Forget a resource."""
        with self._lock:
            self._known.pop(uid, None)

    def replace(self, listed: Iterable[Resource]) -> list[Resource]:
        """Take over what a listing has shown; give those that it no longer shows."""
        fresh = {resource.uid: resource for resource in listed}
        with self._lock:
            gone = [resource for uid, resource in self._known.items() if uid not in fresh]
            self._known = fresh
        return gone

    def all(self) -> list[Resource]:
        """Give every resource."""
        with self._lock:
            return list(self._known.values())

    def owner(self, semaphore: str, but: str = "") -> Resource | None:
        """Give the resource that a semaphore's name belongs to, leaving out the one with the uid `but`."""
        return owners(resource for resource in self.all() if resource.uid != but).get(semaphore)


def owners(resources: Iterable[Resource]) -> dict[str, Resource]:
    """Decide which resource each name belongs to: the oldest that is not being deleted, then the lowest uid."""
    chosen: dict[str, Resource] = {}
    for resource in sorted(resources, key=lambda resource: (resource.created, resource.uid)):
        if resource.deleted is None:
            chosen.setdefault(resource.semaphore, resource)
    return chosen
