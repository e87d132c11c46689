"""What a process knows of a semaphore from the last reply, and how the server's times map to its own."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Final

from distributed_semaphore._errors import (
    Closed,
    NotConfigured,
    QueueFull,
    SemaphoreError,
    WeightTooLarge,
    WouldWait,
)
from distributed_semaphore.protocol.config import State

if TYPE_CHECKING:
    from distributed_semaphore._request import Request

#: The longest lease of an unconfirmed grant and of a process's waiters (`MAX_FIRST` of the scripts); seconds.
FIRST_LEASE: Final = 5.0
#: Answers to an acquire; see `apply.lua`.
GRANTED, QUEUED, FULL, TOO_HEAVY, NOT_CONFIGURED, WOULD_WAIT = 1, 2, -2, -3, -4, -5


class Standing:
    """The head of the last reply (`head` of `prelude.lua`); times are the monotonic clock's, in seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.limit: int | None = None
        """None: not seen yet, or given up as vanished."""
        self.lease = FIRST_LEASE
        self.beat = FIRST_LEASE / 3
        """Seconds between two heartbeats while somebody waits or a grant is unconfirmed."""
        self.generation = -1
        self.cap = 0
        self.max_wait = 0.0
        self.closed = False
        self.soonest = inf
        """When somebody's slot may expire."""
        self.missing_since: float | None = None
        self._asked_at, self._server_ms = 0.0, 0
        """The last answered request was sent at the one, and executed at the other by the server's clock."""

    def learn(self, sent: float, head: Any) -> bool:
        """Take in what every reply says of the semaphore; give whether it wants to be called again at once."""
        now, limit, lease, state, generation, cap, soonest, more, max_wait = head
        self._asked_at, self._server_ms = sent, now
        if limit < 0:
            return False
        self.missing_since = None
        self.limit, self.lease = limit, lease / 1000
        self.beat = min(self.lease, FIRST_LEASE) / 3
        if soonest:
            self.soonest = sent + (soonest - now + 1) / 1000
        self.generation, self.cap, self.max_wait = generation, cap, max_wait / 1000
        self.closed = state == State.CLOSED
        return bool(more)

    @property
    def margin(self) -> float:
        """By how much a slot is given up before the server's lease ends: clocks drift, and the news has a way to go."""
        return min(0.1, self.lease / 50)

    def local(self, expiry: int) -> float:
        """Map a time of the server (ms): the server answered after it was asked, so this is never late."""
        return self._asked_at + (expiry - self._server_ms) / 1000 - self.margin

    def refusal(self, code: int, request: Request) -> SemaphoreError:
        """Make the error for an answer to an acquire."""
        if code == TOO_HEAVY:
            return WeightTooLarge(f"weight {request.weight} exceeds the limit {self.limit} of {self.name}")
        if code == FULL:
            return QueueFull(f"the queue of {self.name} is full (maxWaiting)")
        if code == WOULD_WAIT:
            return WouldWait(f"no slot of {self.name} is free at once")
        return self.closing()

    def closing(self) -> Closed:
        """Make the error for a semaphore that is gone or going."""
        return Closed(f"{self.name} is closed: it admits nobody (its resource was deleted, or has state Closed)")

    def missing(self, shown_url: str) -> NotConfigured:
        """Make the error for a semaphore that Redis does not know."""
        return NotConfigured(
            f"{self.name} is not configured in Redis {shown_url}: no DistributedSemaphore of that name has reached "
            f"it. See `kubectl get dsem --all-namespaces`, or declare one here with limit=... and lease=..."
        )
