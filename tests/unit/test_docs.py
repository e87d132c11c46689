"""Docstrings of what users import: each says what it costs and which errors to expect."""

from __future__ import annotations

import inspect

import pytest

import distributed_semaphore
from distributed_semaphore import AsyncSemaphore, Semaphore, SemaphoreError, Slot

TWINS = [AsyncSemaphore, Semaphore]


def public(kind: type) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_") and not inspect.isdatadescriptor(vars(kind)[name])]


@pytest.mark.parametrize("name", distributed_semaphore.__all__)
def test_everything_has_a_docstring_of_its_own(name: str) -> None:
    thing = getattr(distributed_semaphore, name)
    assert thing.__doc__
    assert thing.__doc__ != object.__doc__
    assert not thing.__doc__.startswith(f"{name}("), "what dataclass has made"
    if isinstance(thing, type):
        assert [
            member for member in public(thing) if callable(getattr(thing, member)) and not _doc(thing, member)
        ] == []


def _doc(kind: type, member: str) -> str:
    return inspect.getdoc(getattr(kind, member)) or ""


@pytest.mark.parametrize("kind", TWINS)
def test_each_request_says_what_it_costs_and_raises(kind: type) -> None:
    for member in ("acquire", "try_acquire", "release", "statistics"):
        assert "round trip" in _doc(kind, member)
    for member in ("acquire", "try_acquire", "statistics", "from_resource", "call", "limit"):
        assert "Raises:" in _doc(kind, member)
    for member in ("slot", "call", "limit"):
        assert "errors" in _doc(kind, member).lower(), "they point to where the errors are listed"


@pytest.mark.parametrize("kind", TWINS)
def test_every_argument_is_explained_with_its_unit(kind: type) -> None:
    for member in (kind.acquire, kind.from_resource, kind):
        explained = inspect.getdoc(member) or ""
        for name in set(inspect.signature(member).parameters) - {"self"}:
            assert f"\n    {name}: " in explained, (member, name)
    for name, place in (("timeout", kind.acquire), ("patience", kind.from_resource), ("lease", kind)):
        assert "second" in (inspect.getdoc(place) or "").partition(f"{name}: ")[2].partition("\n    w")[0]


def test_what_a_slot_offers_says_that_it_asks_nobody() -> None:
    for member in ("check", "remaining"):
        assert "No round trip" in _doc(Slot, member)


def test_errors_say_when_they_are_raised() -> None:
    errors = [thing for thing in vars(distributed_semaphore).values() if isinstance(thing, type)]
    for error in errors:
        if issubclass(error, SemaphoreError):
            assert len(error.__doc__ or "") > 30
