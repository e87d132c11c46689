"""Arguments are checked at the call, with an error that names the allowed range."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Final

from distributed_semaphore._errors import InvalidArgument
from distributed_semaphore.protocol.config import MAX_LEASE_MS, MAX_LIMIT, MIN_LEASE_MS, Config, is_whole

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_LEASE: Final = 30.0
LIFETIME_MS: Final = 2 * MAX_LEASE_MS
"""How long the keys of a semaphore that a client declared outlive their last use."""
MAX_PRIORITY: Final = 8000
"""Priority and ticket share the 53 exact bits of a sorted set's score."""
LONGEST: Final = 366 * 86400
"""Seconds: what every clock and event loop can wait; None waits for ever."""
_KUBERNETES_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


def own_config(limit: int | None, lease: float | None) -> Config | None:
    """Make the config that a client declares; None if it declares none.

    Raises:
        InvalidArgument: limit or lease is outside its range, or a lease comes without a limit.
    """
    if limit is None:
        if lease is not None:
            raise InvalidArgument("a lease goes with a limit: pass both, or neither to use the resource's")
        return None
    whole("limit", limit, 0, MAX_LIMIT)
    seconds = DEFAULT_LEASE if lease is None else lease
    shortest, longest = MIN_LEASE_MS / 1000, MAX_LEASE_MS / 1000
    if not _is_number(seconds) or not shortest <= seconds <= longest:
        raise InvalidArgument(f"lease is a number of seconds from {shortest:g} to {longest:g}, not {lease!r}")
    return Config(limit=limit, lease_ms=round(seconds * 1000), lifetime_ms=LIFETIME_MS)


def own_cap(per_process_limit: int | None) -> int:
    """Give the local limit that a client brings; 0 if none.

    Raises:
        InvalidArgument: it is outside its range.
    """
    if per_process_limit is None:
        return 0
    whole("per_process_limit", per_process_limit, 1, MAX_LIMIT)
    return per_process_limit


def check_request(timeout: float | None, weight: int, priority: int) -> None:
    """Check the arguments of an acquire.

    Raises:
        InvalidArgument: one is outside its range.
    """
    if timeout is not None and not (_is_number(timeout) and 0 <= timeout <= LONGEST):
        raise InvalidArgument(
            f"timeout is a number of seconds from 0 to {LONGEST}, or None to wait for ever, not {timeout!r}"
        )
    whole("weight", weight, 1, MAX_LIMIT)
    whole("priority", priority, -MAX_PRIORITY, MAX_PRIORITY)


def check_resource(name: str, namespace: str | None, patience: float) -> None:
    """Check what `from_resource` is told.

    Raises:
        InvalidArgument: an argument is outside its range.
    """
    for what, value in (("name", name), ("namespace", namespace)):
        if value is None and what == "namespace":
            continue
        if not isinstance(value, str) or not _KUBERNETES_NAME.fullmatch(value):
            raise InvalidArgument(
                f"{what} is that of a resource of Kubernetes, 1 to 253 of a-z, 0-9, - and ., not {value!r}"
            )
    if not _is_number(patience) or not 0 <= patience <= LONGEST:
        raise InvalidArgument(f"patience is a number of seconds from 0 to {LONGEST}, not {patience!r}")


def check_kind(what: str, value: object, kind: type) -> None:
    """Check that an argument is an object of this kind.

    Raises:
        InvalidArgument: it is another.
    """
    if not isinstance(value, kind):
        raise InvalidArgument(f"{what} is a {kind.__name__}, not {value!r}")


def check_callable(what: str, value: object) -> None:
    """Check that an argument can be called.

    Raises:
        InvalidArgument: it cannot.
    """
    if not callable(value):
        raise InvalidArgument(f"{what} is something to call, not {value!r}")


def check_function(fn: Callable[..., object]) -> None:
    """Check what is to be called while a slot is held; refuse what only makes a generator when it is called.

    Raises:
        InvalidArgument: it cannot be called, or is a generator function, asynchronous or not.
    """
    check_callable("what needs a slot", fn)
    if any(inspect.isgeneratorfunction(part) or inspect.isasyncgenfunction(part) for part in _parts(fn)):
        raise InvalidArgument(
            f"{fn!r} is a generator function: its body would run after the slot was given back. Use slot() inside it"
        )


def is_coroutine_function(fn: Callable[..., object]) -> bool:
    """Tell whether calling it makes a coroutine; also of partials and of objects that are called."""
    return any(map(inspect.iscoroutinefunction, _parts(fn)))


def _parts(fn: Callable[..., object]) -> tuple[object, ...]:
    return fn, getattr(fn, "__call__", None)  # noqa: B004  the method is looked at, not for


def whole(what: str, value: object, least: int, most: int) -> None:
    """Check a whole number.

    Raises:
        InvalidArgument: it is none, or outside the range.
    """
    if not (is_whole(value) and least <= value <= most):  # type: ignore[operator]
        raise InvalidArgument(f"{what} is a whole number from {least} to {most}, not {value!r}")


def _is_number(value: object) -> bool:
    """Tell a number from anything else; an infinite one, and one that is none, are in no range."""
    return isinstance(value, int | float) and not isinstance(value, bool)
