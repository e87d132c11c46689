"""A request for a slot on its way between a caller and the I/O thread, and the slot that comes of it."""

from __future__ import annotations

import time
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from distributed_semaphore._errors import SlotLost
from distributed_semaphore._listeners import tell_of_loss

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from distributed_semaphore._errors import SemaphoreError
    from distributed_semaphore._listeners import Observation


class Request:
    """One request. The I/O thread calls `done` with what comes of it."""

    __slots__ = ("asked_at", "done", "may_wait", "priority", "sent", "ticket", "token", "weight")

    def __init__(
        self, weight: int, priority: int, *, may_wait: bool, done: Callable[[Slot | SemaphoreError], None]
    ) -> None:
        self.weight: int = weight
        self.priority: int = priority
        self.may_wait: bool = may_wait
        self.done: Callable[[Slot | SemaphoreError], None] = done
        self.asked_at: float = time.monotonic()
        self.token: str = ""
        """Empty while the local semaphore keeps the request back."""
        self.ticket: int | None = None
        """The place in the queue, once the server has given one."""
        self.sent: bool = False
        """Whether the server may have seen the token."""

    @property
    def claim(self) -> str | int:
        """What the request says of earlier attempts: none, one that may have been executed, or a ticket."""
        if self.ticket is not None:
            return self.ticket
        return "?" if self.sent else ""

    def finish(self, outcome: Slot | SemaphoreError) -> None:
        """Answer the caller, once."""
        self.done(outcome)


class Thread(Protocol):
    """What a slot needs of the I/O thread."""

    @property
    def forked(self) -> bool:
        """Whether it is the parent's."""

    def submit(self, action: Callable[..., None], *args: Any) -> None:
        """Have an action run in it."""

    def deliver(self, loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
        """Have it run an action in an event loop."""


class Keeper(Protocol):
    """What a slot needs of the session that keeps it, so that its type says no more than its users need."""

    @property
    def name(self) -> str:
        """The semaphore's name."""

    @property
    def courier(self) -> Thread:
        """The thread that carries its calls."""

    def release(self, slot: Slot, done: Callable[[int], None] | None = None) -> None:
        """Give a slot back."""


class ReleaseOutcome(Enum):
    """What a release has found. True in a condition if it freed the slot; in any case the slot is free now."""

    RELEASED = "released"
    """The slot was held until now."""
    LOST = "lost"
    """The slot had been lost before: others may have held it meanwhile, so its work may not have been alone."""
    NOT_HELD = "not held"
    """This process had released it before, or it is the slot of a parent process; nothing has changed."""

    def __bool__(self) -> bool:
        return self is ReleaseOutcome.RELEASED


class Slot:
    """A slot that this process holds, and what its holder needs to know of it. May be used from any thread.

    Attributes:
        name: the semaphore's name.
        fence: a number that rises with every grant of this semaphore. Hand it to a store that refuses lower numbers
            than it has seen, and a holder that was paused beyond its lease can do no harm.
        weight: how much of the limit it takes.
        waited: seconds between the request and the grant.
    """

    __slots__ = (
        "_observation",
        "_on_loss",
        "_reason",
        "_released",
        "_session",
        "deadline",
        "expiry_ms",
        "fence",
        "name",
        "token",
        "waited",
        "weight",
    )

    def __init__(self, session: Keeper, request: Request, fence: int, expiry_ms: int, deadline: float) -> None:
        self.name: str = session.name
        self.token: str = request.token
        self.weight: int = request.weight
        self.fence: int = fence
        self.expiry_ms: int = expiry_ms
        self.deadline: float = deadline
        self.waited: float = time.monotonic() - request.asked_at
        self._session = session
        self._reason = ""
        self._on_loss: Callable[[], None] | None = None
        self._observation: Observation | None = None
        self._released = False

    @property
    def lost(self) -> bool:
        """Whether the slot is no longer this process's; its own clock decides, and gives up before the server's."""
        return bool(self._reason) or (not self._released and time.monotonic() >= self.deadline)

    def remaining(self) -> float:
        """Seconds until the slot is lost unless it is renewed before; 0 once lost or released. No round trip."""
        if self._reason or self._released:
            return 0.0
        return max(0.0, self.deadline - time.monotonic())

    def check(self) -> None:
        """Raise `SlotLost` if the slot is lost: for work that can stop between two steps. No round trip."""
        if self.lost:
            raise self.loss()

    def loss(self) -> SlotLost:
        """Make the error that tells of the loss."""
        reason = self._reason or "its lease ran out before it could be renewed"
        return SlotLost(f"the slot of {self.name} (fence {self.fence}) is lost: {reason}")

    @property
    def inherited(self) -> bool:
        """Whether this is a forked child's copy of a slot that its parent holds."""
        return self._session.courier.forked

    def give_back(self, done: Callable[[ReleaseOutcome], None] | None = None) -> None:
        """Send the release on its way; `done` hears in the I/O thread what it has found."""
        otherwise = ReleaseOutcome.NOT_HELD if self._released else ReleaseOutcome.LOST
        lost, self._released = self.lost, True
        if self._observation and not self.inherited:
            self._observation.ended(lost=lost)

        def heard(code: int) -> None:
            if done:
                done(ReleaseOutcome.RELEASED if code == 1 else otherwise)

        self._session.courier.submit(self._session.release, self, heard)

    def lose(self, reason: str) -> None:
        """Note the loss and tell whoever wanted to hear of it; called in the I/O thread."""
        self._reason = reason
        if self._observation:
            tell_of_loss(self._observation)
        if self._on_loss:
            self._on_loss()

    def observe(self, observation: Observation) -> None:
        """Have the end of the hold told."""
        self._observation = observation
        if self._reason:
            tell_of_loss(observation)

    def watch(self, on_loss: Callable[[], None], loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Have a callback run when the slot is lost, in an event loop or in the I/O thread; soon if it is."""
        courier = self._session.courier
        if loop is None:
            self._on_loss = partial(courier.submit, on_loss)
        else:
            self._on_loss = partial(courier.submit, courier.deliver, loop, on_loss)
        if self._reason:
            self._on_loss()

    def unwatch(self) -> None:
        """Forget the callback."""
        self._on_loss = None

    def __repr__(self) -> str:
        state = "released" if self._released else "lost" if self.lost else f"{self.remaining():.1f}s left"
        return f"<Slot of {self.name}: fence {self.fence}, {state}>"
