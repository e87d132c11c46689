"""What a semaphore is: the spec of its resource, as mirrored into the `config` hash."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MIN_LEASE_MS: Final = 1_000
MAX_LEASE_MS: Final = 3_600_000
MAX_LIMIT: Final = 100_000
DEFAULT_MAX_WAITING: Final = 10_000


#: Field, least and most of each number of a config; to 2^53 numbers are exact in Lua.
_BOUNDS: Final = (
    ("limit", 0, MAX_LIMIT),
    *((field, 0, 2**53) for field in ("lease_ms", "max_waiting", "max_wait_ms", "max_hold_ms", "per_process_limit")),
    *((field, 0, 2**53) for field in ("generation", "epoch", "lifetime_ms")),
)


def is_whole(value: object) -> bool:
    """Tell whether it is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


class State(StrEnum):
    """What a semaphore does with requests."""

    ACTIVE = "Active"
    PAUSED = "Paused"
    """Requests queue, nothing is granted."""
    CLOSED = "Closed"
    """New requests are refused, waiters are sent away, holders may finish."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The configuration of one semaphore; times in milliseconds.

    `uid`, `generation` and `epoch` fence the writes: a config of a lower epoch, or of the same uid and a lower
    generation, is refused by the script that writes it. A client that declares a semaphore of its own has no uid,
    and never replaces the config of an operator.
    """

    limit: int
    lease_ms: int
    state: State = State.ACTIVE
    max_waiting: int = DEFAULT_MAX_WAITING
    max_wait_ms: int = 0
    """0: waits are not bounded by the server."""
    max_hold_ms: int = 0
    """0: holds are not watched."""
    per_process_limit: int = 0
    """0: a process may queue or hold any number."""
    uid: str = ""
    generation: int = 0
    epoch: int = 0
    lifetime_ms: int = 0
    """How long the keys outlive their last use; 0: until somebody deletes the semaphore."""

    def __post_init__(self) -> None:
        """Refuse values outside the bounds of the resource's schema."""
        for field, least, most in _BOUNDS:
            value = getattr(self, field)
            if not is_whole(value) or not least <= value <= most:
                raise ValueError(f"{field} is a whole number from {least} to {most}, not {value!r}")
        if not MIN_LEASE_MS <= self.lease_ms <= MAX_LEASE_MS:
            raise ValueError(
                f"lease is {MIN_LEASE_MS // 1000}s to {MAX_LEASE_MS // 1000}s, not {self.lease_ms / 1000}s"
            )

    def fields(self) -> list[str | int]:
        """Give the hash's fields and values, flat."""
        return [
            *("limit", self.limit, "lease", self.lease_ms, "state", self.state.value),
            *("maxWaiting", self.max_waiting, "maxWait", self.max_wait_ms, "maxHold", self.max_hold_ms),
            *("perProcessLimit", self.per_process_limit),
            *("uid", self.uid, "generation", self.generation, "epoch", self.epoch),
            *("lifetime", self.lifetime_ms),
        ]

    @classmethod
    def parse(cls, stored: Mapping[str, str]) -> Config | None:
        """Read a config back from the hash; None where there is none.

        Only limit, lease and state must be there: a hand or an older operator may have written no more.
        """
        if "limit" not in stored:
            return None
        return cls(
            limit=int(stored["limit"]),
            lease_ms=int(stored["lease"]),
            state=State(stored["state"]),
            max_waiting=int(stored.get("maxWaiting", DEFAULT_MAX_WAITING)),
            max_wait_ms=int(stored.get("maxWait", 0)),
            max_hold_ms=int(stored.get("maxHold", 0)),
            per_process_limit=int(stored.get("perProcessLimit", 0)),
            uid=stored.get("uid", ""),
            generation=int(stored.get("generation", 0)),
            epoch=int(stored.get("epoch", 0)),
            lifetime_ms=int(stored.get("lifetime", 0)),
        )
