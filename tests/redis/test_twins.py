"""What both twins promise in the same words: every test runs on each."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.redis.conftest import Twin, said

from distributed_semaphore import AcquireTimeout, AsyncSemaphore, InvalidArgument, ReleaseOutcome, Semaphore, WouldWait
from distributed_semaphore.protocol import Config, Keys, declare

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from distributed_semaphore import Slot


async def test_who_may_not_wait_is_told_apart_from_who_has_waited(twin: Twin) -> None:
    slots = [await said(twin.acquire()), await said(twin.try_acquire())]
    with pytest.raises(WouldWait, match=f"no slot of {twin.name} is free at once"):
        await said(twin.acquire(timeout=0))
    with pytest.raises(AcquireTimeout, match="1st of 1 in line") as raised:
        await said(twin.acquire(timeout=0.1))
    assert not isinstance(raised.value, WouldWait)
    assert await said(twin.try_acquire()) is None
    for slot in slots:
        assert await said(twin.release(slot)) is ReleaseOutcome.RELEASED
    assert (await said(twin.statistics())).waiting == 0


async def test_nobody_who_may_not_wait_passes_somebody_who_waits(twin: Twin) -> None:
    """anyio's acquire_nowait does the same."""
    slot = await said(twin.acquire())
    heavy = asyncio.create_task(AsyncSemaphore(twin.name, redis=twin._url).acquire(weight=2))
    while (await said(twin.statistics())).waiting != 1:
        await asyncio.sleep(0.01)
    assert await said(twin.try_acquire()) is None
    assert await said(twin.release(slot))
    assert await said(twin.release(await heavy))


async def lose(slot: Slot, redis: Redis) -> None:
    await redis.zrem(Keys.of(slot.name).prefix + "holders", slot.token)


async def test_a_release_tells_what_it_has_found(twin: Twin, redis: Redis) -> None:
    slot = await said(twin.acquire())
    assert await said(twin.release(slot)) is ReleaseOutcome.RELEASED
    assert await said(twin.release(slot)) is ReleaseOutcome.NOT_HELD
    lost = await said(twin.acquire())
    await lose(lost, redis)  # and nobody has noticed yet
    outcome = await said(twin.release(lost))
    assert outcome is ReleaseOutcome.LOST
    assert not outcome
    noticed = await said(twin.acquire())
    await lose(noticed, redis)
    while not noticed.lost:
        await asyncio.sleep(0.01)
    assert await said(twin.release(noticed)) is ReleaseOutcome.LOST
    assert await said(twin.release(noticed)) is ReleaseOutcome.NOT_HELD


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
async def test_a_child_that_releases_its_parents_slot_is_told_that_it_has_none(twin: Twin) -> None:
    slot = await said(twin.acquire())
    child = os.fork()
    if not child:
        answer = twin.release(slot)
        if inspect.iscoroutine(answer):
            try:
                answer.send(None)
            except StopIteration as ended:
                answer = ended.value
        os._exit(0 if answer is ReleaseOutcome.NOT_HELD else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert await said(twin.release(slot)) is ReleaseOutcome.RELEASED


async def test_the_text_of_a_timeout_tells_who_holds_how_much_and_for_how_long(twin: Twin, redis: Redis) -> None:
    await declare(redis, twin.name, Config(limit=5, lease_ms=2000, uid="uid", generation=1))
    slots = [await said(twin.acquire(weight=2)), await said(twin.acquire())]
    with pytest.raises(AcquireTimeout) as raised:
        await said(twin.acquire(weight=3, timeout=0.1))
    who = r"\S+ \d+ on \S+ for \d+s"
    expected = rf"no slot of {twin.name} within 0\.\ds: 1st of 1 in line, limit 5, 3 of it held by {who}, {who}"
    assert re.fullmatch(expected, str(raised.value))
    for slot in slots:
        await said(twin.release(slot))


async def test_the_local_limit_is_named_as_what_one_waits_for(twin: Twin) -> None:
    capped = type(twin)(twin.name, redis=twin._url, limit=2, lease=2, per_process_limit=1)
    slot = await said(capped.acquire())
    for timeout, kind in ((0, WouldWait), (0.05, AcquireTimeout)):
        with pytest.raises(kind, match=f"holds or awaits 1 slots of {twin.name}, as many as its perProcessLimit"):
            await said(capped.acquire(timeout=timeout))
    await said(capped.release(slot))


def numbers():
    yield 1


async def later():
    yield 1


class Called:
    async def __call__(self) -> int:
        return 1


async def coroutine() -> int:
    return 1


@pytest.mark.parametrize("fn", [numbers, later, functools.partial(numbers)])
async def test_generators_are_refused_where_they_are_given(twin: Twin, fn: Any) -> None:
    """Called, a generator function has done nothing yet: a slot around the call would protect nothing."""
    with pytest.raises(InvalidArgument, match=r"generator function.+Use slot\(\) inside it"):
        twin.limit(fn)
    with pytest.raises(InvalidArgument, match="generator function"):
        await said(twin.call(fn))


@pytest.mark.parametrize("fn", [coroutine, Called(), functools.partial(coroutine)])
async def test_coroutine_functions_belong_to_the_one_twin(twin: Twin, fn: Any) -> None:
    if isinstance(twin, AsyncSemaphore):
        assert await twin.limit(fn)() == await twin.call(fn) == 1
        return
    for use in (twin.limit, twin.call):
        with pytest.raises(InvalidArgument, match="use AsyncSemaphore for"):
            use(fn)


async def test_plain_functions_are_decorated_by_the_other(twin: Twin) -> None:
    if isinstance(twin, Semaphore):
        assert twin.limit(lambda n: n)(1) == 1
        return
    with pytest.raises(InvalidArgument, match=r"use Semaphore\.limit for"):
        twin.limit(lambda n: n)


def public(kind: type) -> dict[str, Any]:
    return {name: member for name, member in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_both_have_the_same_methods_with_the_same_arguments_and_docs() -> None:
    """What is said of arguments and errors is the same, word for word; only what differs may."""
    threads, tasks = public(Semaphore), public(AsyncSemaphore)
    assert threads.keys() == tasks.keys()
    for name, method in tasks.items():
        twin = threads[name]
        extra = {"on_lost"} if name == "slot" else set()
        assert {*inspect.signature(twin).parameters} - {*inspect.signature(method).parameters} == extra
        ours, theirs = inspect.getdoc(method), inspect.getdoc(twin)
        assert ours
        assert theirs
        for part in ("Args:", "Raises:"):
            if name not in ("call", "limit"):
                assert section(ours, part) == section(theirs, part)


def section(doc: str, title: str) -> str:
    return doc.partition(title)[2].partition("\n\n")[0]
