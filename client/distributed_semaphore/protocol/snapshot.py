"""What one look at a semaphore shows: the reply of `inspect.lua`, as values."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from distributed_semaphore.protocol.config import Config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Tickets count milliseconds from here (2025-01-01T00:00:00Z), so that priority and ticket fit one double until 2059.
TICKET_EPOCH_MS: Final = 1_735_689_600_000
PRIORITY_STEP: Final = 1 << 40
#: Bounds of the wait-time histogram: waits are counted by the power of two that they stay below; the last has the rest.
WAIT_BUCKETS_MS: Final = tuple(1 << power for power in range(20))


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a slot. Times are the server's, in seconds since 1970."""

    token: str
    fence: int
    expires_at: float
    weight: int = 1
    identity: Mapping[str, str] = field(default_factory=dict)
    """pod, namespace, uid, node, host, pid, app: those that are known."""

    @property
    def since(self) -> float:
        """When the slot was granted: a fence is the server's time of the grant in microseconds."""
        return self.fence / 1e6


@dataclass(frozen=True, slots=True)
class Waiter:
    """Who waits in the queue. Times are the server's, in seconds since 1970."""

    token: str
    position: int
    """1 for the head of the queue."""
    since: float
    weight: int = 1
    priority: int = 0
    identity: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the semaphore's keys exist."""

    granted: int = 0
    released: int = 0
    expired: int = 0
    """Slots taken back because their lease ran out."""
    abandoned: int = 0
    """Waiters dropped because their process no longer answered."""
    left: int = 0
    """Waiters that gave up: timed out or cancelled."""
    refused: int = 0
    """Requests refused at once: queue full, closed, too heavy."""
    overdue: int = 0
    """Waiters dropped because they had waited longer than `maxWait`."""
    reclaimed: int = 0
    """Slots that their holders put back after a loss of data."""
    revoked: int = 0
    """Slots and places taken away by hand or by the operator."""
    waited_ms: int = 0
    """Sum of the waits of all that were granted."""
    waits: tuple[int, ...] = (0,) * (len(WAIT_BUCKETS_MS) + 1)
    """How many waited less than each of `WAIT_BUCKETS_MS` but not than the one before; the last: longer than all."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A semaphore at one moment of the server's clock. Times in seconds since 1970."""

    server_time: float
    config: Config | None
    """None: nothing is configured under this name."""
    held: int
    """Weight of all holders: what counts against the limit."""
    holder_count: int
    waiter_count: int
    holders: tuple[Holder, ...]
    """The longest holding first, at most as many as were asked for."""
    waiters: tuple[Waiter, ...]
    """The head first, at most as many as were asked for."""
    counters: Counters
    last_grant: float | None
    last_release: float | None
    pace: float = 0.0
    """Seconds between two grants of late, while somebody waited; 0: not known yet."""
    reclaim_until: float | None = None
    """Until then nothing is granted and holders put back what a loss of data took; None: no reclaim is open."""
    position: int = 0
    """Place in the queue of the token that was asked for, 1 for the head; 0 if it does not wait."""
    oldest_waiter_since: float | None = None
    """Since when the longest waiting waits, named or not; None if nobody does."""

    def expected_wait(self, position: int) -> float | None:
        """Estimate the seconds until the waiter at a position is granted, from recent grants; None: no grants yet."""
        return position * self.pace if self.pace else None


#: The numbers of the counters' field `tally`, in their order (see `prelude.lua`).
_TALLY: Final = ("ticket", "fence", "extra", "pace", "granted", "released", "waited", "releasedAt")
_TOTALS: Final = ("granted", "released", "expired", "abandoned", "left", "refused", "overdue", "reclaimed", "revoked")


def parse_snapshot(reply: Sequence[Any]) -> Snapshot:
    """Turn the reply of `inspect.lua` (see its header) into a `Snapshot`."""
    now_ms, config, counters, held, holder_count, waiter_count, holders, waiters, identities, position, oldest = reply
    counts, stored = _pairs(counters), _pairs(config)
    counts.update(zip(_TALLY, counts.pop("tally", "").split(), strict=False))
    reclaim = stored.get("reclaim", "")
    reclaim_ms = int(reclaim) if reclaim.isdigit() else 0  # as the scripts read it
    known = {client: _identity(text) for client, text in _pairs(identities).items()}
    last_fence, last_release = int(counts.get("fence", 0)), int(counts.get("releasedAt", 0))
    return Snapshot(
        server_time=now_ms / 1000,
        config=Config.parse(stored),
        held=held,
        holder_count=holder_count,
        waiter_count=waiter_count,
        holders=tuple(
            Holder(
                token=token,
                fence=int(fence),
                expires_at=int(expires) / 1000,
                weight=weight_of(token),
                identity=known.get(client_of(token), {}),
            )
            for token, fence, expires in zip(*[iter(map(_text, holders))] * 3, strict=True)
        ),
        waiters=tuple(
            Waiter(
                token=token,
                position=position,
                since=(TICKET_EPOCH_MS + int(score) % PRIORITY_STEP) / 1000,
                weight=weight_of(token),
                priority=-(int(score) // PRIORITY_STEP),
                identity=known.get(client_of(token), {}),
            )
            for position, (token, score) in enumerate(zip(*[iter(map(_text, waiters))] * 2, strict=True), start=1)
        ),
        counters=Counters(
            **{name: int(counts.get(name, 0)) for name in _TOTALS},
            waited_ms=int(counts.get("waited", 0)),
            waits=tuple(int(counts.get(f"waits{bucket}", 0)) for bucket in range(len(WAIT_BUCKETS_MS) + 1)),
        ),
        last_grant=last_fence / 1e6 if last_fence else None,
        last_release=last_release / 1000 if last_release else None,
        pace=int(counts.get("pace", 0)) / 1e6,
        reclaim_until=reclaim_ms / 1000 if reclaim_ms > now_ms else None,
        position=position,
        oldest_waiter_since=(TICKET_EPOCH_MS + oldest) / 1000 if oldest else None,
    )


def _identity(text: str) -> dict[str, str]:
    """Read what a client says of itself; whatever it has written must not keep anybody from looking."""
    try:
        known = json.loads(text)
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in known.items()} if isinstance(known, dict) else {}


def client_of(token: str) -> str:
    """Give the client that made a token, ``<client>.<number>.<weight>``."""
    return token.split(".", 1)[0]


def weight_of(token: str) -> int:
    """Give the weight that stands in a token."""
    return int(token.rsplit(".", 1)[1])


def _text(value: bytes | str | int) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _pairs(flat: Sequence[bytes | str] | Mapping[Any, Any]) -> dict[str, str]:
    """Make a dict of a flat list of fields and values."""
    items = [_text(item) for item in flat]
    return dict(zip(items[::2], items[1::2], strict=True))
