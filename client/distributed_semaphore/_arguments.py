"""Arguments are checked at the call, with an error that names the allowed range."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Final

from distributed_semaphore._errors import InvalidArgument
from distributed_semaphore.protocol.config import MAX_LEASE_MS, MAX_LIMIT, MIN_LEASE_MS, Config

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_LEASE: Final = 30.0
LIFETIME_MS: Final = 2 * MAX_LEASE_MS
"""How long the keys of a semaphore that a client declared outlive their last use."""
MAX_PRIORITY: Final = 8000
"""Priority and ticket share the 53 exact bits of a sorted set's score."""


def own_config(limit: int | None, lease: float | None) -> Config | None:
    """Make the config that a client declares; None if it declares none.

    Raises:
        InvalidArgument: limit or lease is outside its range, or a lease comes without a limit.
    """
    if limit is None:
        if lease is not None:
            raise InvalidArgument("a lease goes with a limit: pass both, or neither to use the resource's")
        return None
    if not _is_whole(limit) or not 0 <= limit <= MAX_LIMIT:
        raise InvalidArgument(f"limit is a whole number from 0 to {MAX_LIMIT}, not {limit!r}")
    seconds = DEFAULT_LEASE if lease is None else lease
    shortest, longest = MIN_LEASE_MS / 1000, MAX_LEASE_MS / 1000
    if not _is_number(seconds) or not shortest <= seconds <= longest:
        raise InvalidArgument(f"lease is a number of seconds from {shortest:g} to {longest:g}, not {lease!r}")
    return Config(limit=limit, lease_ms=round(seconds * 1000), lifetime_ms=LIFETIME_MS)


def check_request(timeout: float | None, weight: int, priority: int) -> None:
    """Check the arguments of an acquire.

    Raises:
        InvalidArgument: one is outside its range.
    """
    if timeout is not None and not (_is_number(timeout) and timeout >= 0):
        raise InvalidArgument(f"timeout is a number of seconds, 0 or more, or None to wait for ever, not {timeout!r}")
    if not _is_whole(weight) or not 1 <= weight <= MAX_LIMIT:
        raise InvalidArgument(f"weight is a whole number from 1 to {MAX_LIMIT}, not {weight!r}")
    if not _is_whole(priority) or abs(priority) > MAX_PRIORITY:
        raise InvalidArgument(f"priority is a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}, not {priority!r}")


def refuse_generators(fn: Callable[..., object]) -> None:
    """Refuse what only makes a generator when it is called.

    Raises:
        InvalidArgument: it is a generator function, asynchronous or not.
    """
    if any(inspect.isgeneratorfunction(part) or inspect.isasyncgenfunction(part) for part in _parts(fn)):
        raise InvalidArgument(
            f"{fn!r} is a generator function: its body would run after the slot was given back. Use slot() inside it"
        )


def is_coroutine_function(fn: Callable[..., object]) -> bool:
    """Tell whether calling it makes a coroutine; also of partials and of objects that are called."""
    return any(map(inspect.iscoroutinefunction, _parts(fn)))


def _parts(fn: Callable[..., object]) -> tuple[object, ...]:
    return fn, getattr(fn, "__call__", None)  # noqa: B004  the method is looked at, not for


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
