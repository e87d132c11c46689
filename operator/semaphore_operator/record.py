"""What the operator has seen and done: the source of metrics and probes."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from distributed_semaphore.protocol import Snapshot
    from semaphore_operator.models import Resource, Status

REPAIRS: Final = ("token", "ungranted", "unheld", "identity", "extra", "fence")
"""Kinds of repairs that an audit makes (see `audit.lua`)."""
CAUSES: Final = ("pod", "order")
"""Why slots and places are taken from clients: their pod is gone, or somebody has asked for it."""
log = logging.getLogger("semaphore_operator")


KINDS: Final = ("redis", "kube", "watch", "sweep", "lease", "pods", "release")
"""Kinds of failures."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the last look at one semaphore has shown."""

    resource: Resource
    snapshot: Snapshot | None
    """None: Redis could not be asked, or the name belongs to another resource."""
    status: Status


@dataclass(slots=True)
class Record:
    """Written by the sweep and the watch, read by metrics and probes; all in the main event loop."""

    seen: dict[str, Seen] = field(default_factory=dict)
    """By uid, of the resources that there are."""
    redis_up: bool = False
    kube_up: bool = False
    """Whether the last listing worked."""
    watching: bool = False
    leading: bool = True
    """Whether this process may write: with an election, while it holds the Lease."""
    standby: bool = False
    """Whether it could take over: it can read the Lease, which another holds."""
    finished: float = field(default_factory=time.monotonic)
    """When the last sweep ended; of a follower, the last look at the Lease."""
    duration: float = 0.0
    """How long it took (s)."""
    sweeps: int = 0
    patches: int = 0
    restored: int = 0
    reopened: int = 0
    repaired: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(REPAIRS, 0)))
    """Repairs of the audit, by kind."""
    freed: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(CAUSES, 0)))
    """Slots and places taken from clients, by cause."""
    leftovers: int = 0
    errors: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    _said: dict[str, str] = field(default_factory=dict)

    def failed(self, kind: str, text: str) -> None:
        """Count a failure; log it when it is another than the last of its kind."""
        self.errors[kind] += 1
        if self._said.get(kind) != text:
            self._said[kind] = text
            log.error("%s; it is tried again", text)

    def went_well(self, kind: str) -> None:
        """Note that this kind of thing works; a failure after it is news."""
        if self._said.pop(kind, None):
            log.info(
                "%s works again",
                {
                    "redis": "Redis",
                    "kube": "Kubernetes",
                    "lease": "the Lease",
                    "pods": "the watch of pods",
                    "release": "the release by order",
                }.get(kind, kind),
            )
