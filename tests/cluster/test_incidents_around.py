"""Incidents of what is around the semaphores: Redis, its password, its data, the operator, the namespace."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest
from redis.asyncio import Redis
from tests.cluster.evidence import CALM, Seen, changes, check_alerts, look, operating, sweeps, until
from tests.cluster.incidents import requests
from tests.cluster.operator_process import OperatorProcess

from distributed_semaphore import AsyncSemaphore, Closed, Slot
from distributed_semaphore.testing import RedisServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.cluster.conftest import Kubectl, Resources

    from controlplane import ControlPlane

WAITING: Final = {"QueueStuck": ("False", "Moving"), "LongWait": ("False", "ShortWaits")}
UNKNOWN: Final = dict.fromkeys(CALM, ("Unknown", "RedisUnavailable"))
GONE: Final = {'errors_total{kind="redis"}', "redis_up"}
"""What changes of the operator's own metrics while Redis does not answer."""


@dataclass(frozen=True)
class Pair:
    """A Redis and its operator, which both may be broken."""

    server: RedisServer
    operator: OperatorProcess


@pytest.fixture(scope="module")
def pair(cluster: ControlPlane, crd: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The operator has a user of its own, so that its password can be wrong while workers go on."""
    with RedisServer(args=("--user", "operator", "on", ">right", "~*", "&*", "+@all")) as server:
        log = tmp_path_factory.mktemp("operator") / "log"
        address = server.url.replace("://", "://operator:right@")
        operator = OperatorProcess(cluster.kubeconfig, log, "--redis", address, "--sweep=0.1", "--patch=0.1").start()
        yield Pair(server, operator)
        assert operator.stop() == 0
        assert "Traceback" not in operator.text, operator.text
        assert "right@" not in operator.text


@pytest.fixture
async def redis(pair: Pair) -> AsyncIterator[Redis]:
    async with Redis.from_url(pair.server.url, decode_responses=True) as connection:
        yield connection


class Place:
    """A semaphore with one slot, which one request has and another waits for."""

    def __init__(self, pair: Pair, dsem: Resources) -> None:
        self.dsem = dsem
        self.operator = pair.operator
        self.semaphore = AsyncSemaphore(f"{dsem.namespace}/api", redis=pair.server.url)

    @contextlib.asynccontextmanager
    async def occupied(self) -> AsyncIterator[Slot]:
        """Hold and wait; at the end the slot is given back, and the one who waited has it."""
        self.dsem.apply("api", limit=1, lease="2s")
        self.dsem.ready("api")
        async with requests(self.semaphore, 1, 1) as (first, second):
            await until(lambda: self.seen == Seen.of(WAITING))
            slot = await first
            yield slot
            assert (slot.lost, second.done()) == (False, False)
            assert await self.semaphore.release(slot)
            await asyncio.wait_for(asyncio.shield(second), 10)

    @property
    def seen(self) -> Seen | None:
        return look(self.dsem, self.operator).get("api")

    async def becomes(self, expected: Seen) -> None:
        """Wait until this is what is seen, and see that it stays so."""
        with contextlib.suppress(AssertionError):
            await until(lambda: self.seen == expected)
        await sweeps(self.operator)
        assert self.seen == expected


@pytest.fixture
async def place(pair: Pair, dsem: Resources) -> AsyncIterator[Place]:
    yield Place(pair, dsem)
    await asyncio.to_thread(dsem, "delete", "dsem", "--all", "--timeout=20s")


async def test_flushall_is_one_event_and_costs_nobody_a_slot(
    place: Place, redis: Redis, pair: Pair, tmp_path: Path
) -> None:
    async with place.occupied():
        before = operating(pair.operator)
        await redis.flushall()
        told = Seen.of(WAITING, (("Warning", "ConfigRestored"),), {"reclaimed": 1})
        await place.becomes(told)
        assert changes(before, pair.operator) == {"configs_restored_total"}
        check_alerts(pair.operator.get("/metrics")[1], set(), tmp_path)


async def test_an_operator_that_is_down_changes_nothing_that_was_said(place: Place, pair: Pair, tmp_path: Path) -> None:
    async with place.occupied():
        pair.operator.kill()
        check_alerts("", {("SemaphoreOperatorAbsent", "")}, tmp_path)
    async with requests(place.semaphore, 1, 1) as (first, second):  # grants go on
        await first
        await asyncio.to_thread(pair.operator.start)
        await place.becomes(Seen.of(WAITING))
        assert not second.done()
    started = operating(pair.operator)
    assert {name for name, value in started.items() if "_total" in name and value} == set()


async def test_a_wrong_password_is_said_and_workers_go_on(
    place: Place, redis: Redis, pair: Pair, tmp_path: Path
) -> None:
    async with place.occupied():
        before = operating(pair.operator)
        await redis.acl_setuser("operator", enabled=True, passwords=["-right", "+another"])
        await redis.execute_command("CLIENT KILL USER operator")
        await place.becomes(Seen.of({**UNKNOWN, "RedisAvailable": ("False", "AuthenticationFailed")}))
        assert changes(before, pair.operator) == GONE
        check_alerts(pair.operator.get("/metrics")[1], {("SemaphoreRedisUnavailable", "")}, tmp_path)
    await redis.acl_setuser("operator", enabled=True, passwords=["-another", "+right"])
    await place.becomes(Seen.of(CALM))


async def test_redis_down_is_said_of_all_and_told_by_nobody(place: Place, pair: Pair, tmp_path: Path) -> None:
    async with place.occupied():
        pass
    await place.becomes(Seen.of(CALM))
    before = operating(pair.operator)
    pair.server.stop()
    await place.becomes(Seen.of({**UNKNOWN, "RedisAvailable": ("False", "ConnectionFailed")}))
    assert changes(before, pair.operator) == GONE
    check_alerts(pair.operator.get("/metrics")[1], {("SemaphoreRedisUnavailable", "")}, tmp_path)
    pair.server.start()
    await place.becomes(Seen.of(CALM, (("Warning", "ConfigRestored"),)))
    assert changes(before, pair.operator) == {'errors_total{kind="redis"}', "configs_restored_total"}


async def test_a_deleted_namespace_leaves_no_trace_and_no_complaint(
    place: Place, redis: Redis, pair: Pair, kubectl: Kubectl, tmp_path: Path
) -> None:
    """Twingate#403: nothing can be written into a namespace that goes, and the finalizers go all the same."""
    before, begin = operating(pair.operator), len(pair.operator.text)
    place.dsem.apply("api", limit=1)
    place.dsem.apply("idle", limit=1)
    place.dsem.ready("api", "idle")
    slot = await place.semaphore.acquire()
    async with requests(place.semaphore, 1) as [waiting]:
        await until(lambda: place.seen == Seen.of(WAITING))
        kubectl("delete", "namespace", place.dsem.namespace, "--wait=false")
        with pytest.raises(Closed):
            await asyncio.wait_for(waiting, 10)
    await until(lambda: place.dsem("get", "dsem", "--output=name") == "")
    assert not slot.lost
    assert await place.semaphore.release(slot)
    assert await redis.keys("sem:*") == []
    await sweeps(pair.operator)
    assert changes(before, pair.operator) == set()
    assert place.dsem.namespace not in pair.operator.get("/metrics")[1]
    check_alerts(pair.operator.get("/metrics")[1], set(), tmp_path)
    assert "ERROR" not in pair.operator.text[begin:]
    assert "WARNING" not in pair.operator.text[begin:]
