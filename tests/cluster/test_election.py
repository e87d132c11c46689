"""Several replicas of the operator, of which one leads: real API server, real Lease, real Redis, real clients."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import time
from typing import TYPE_CHECKING, Any, Final, Self

import pytest
from redis.asyncio import Redis
from tests.cluster.conftest import Resources, eventually

from distributed_semaphore import AsyncSemaphore
from distributed_semaphore.protocol import Keys
from distributed_semaphore.testing import RedisServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.cluster.conftest import StartOperator
    from tests.cluster.operator_process import OperatorProcess

DURATION: Final = 3
"""Lease duration (s): short, so that a crash is over soon."""
SHORT: Final = (
    f"--lease-duration={DURATION}",
    "--renew-deadline=2",
    "--retry-period=0.4",
    "--sweep=0.2",
    "--patch=0.2",
)
SOAK: Final = os.environ.get("SEMAPHORE_SOAK") == "1"
KILLS: Final = 20 if SOAK else 3


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


class Replicas:
    """Operators of one Lease and one namespace."""

    def __init__(self, dsem: Resources, server: RedisServer, start: StartOperator) -> None:
        self.dsem = dsem
        self.lease = f"{dsem.namespace}/operator"
        self.all: list[OperatorProcess] = []
        self._options = (f"--redis={server.url}", f"--namespaces={dsem.namespace}", f"--lease={self.lease}", *SHORT)
        self._start = start

    def add(self, **how: Any) -> OperatorProcess:
        process = self._start(*self._options, **how)
        self.all.append(process)
        return process

    @property
    def leaders(self) -> list[OperatorProcess]:
        """Those that say that they lead."""
        found = []
        for process in self.all:
            with contextlib.suppress(OSError):  # it has ended
                if process.running and process.metrics("semaphore_operator_leader") == {(): 1}:
                    found.append(process)
        return found

    def leader(self, timeout: float = 20) -> OperatorProcess:
        """Wait until one leads."""
        eventually(lambda: len(self.leaders) == 1, timeout)
        return self.leaders[0]

    def holder(self) -> str:
        return str(json.loads(self.dsem("get", "lease", "operator", "--output=json"))["spec"].get("holderIdentity", ""))


@pytest.fixture
def replicas(dsem: Resources, server: RedisServer, start_operator: StartOperator) -> Iterator[Replicas]:
    """Operators of the test's own Lease; no resource is left that waits for one."""
    yield Replicas(dsem, server, start_operator)
    for each in json.loads(dsem("get", "dsem", "--output=json"))["items"]:
        dsem("patch", "dsem", each["metadata"]["name"], "--type=merge", '--patch={"metadata":{"finalizers":null}}')


@contextlib.asynccontextmanager
async def load(name: str, url: str) -> AsyncIterator[list[float]]:
    """Six workers at two slots; gives the moments of their grants."""
    semaphore, grants, stop = AsyncSemaphore(name, redis=url), [], asyncio.Event()

    async def work() -> None:
        while not stop.is_set():
            async with semaphore:
                grants.append(time.monotonic())
                await asyncio.sleep(0.02)

    workers = [asyncio.create_task(work()) for _ in range(6)]
    try:
        yield grants
    finally:
        stop.set()
        await asyncio.gather(*workers)


class ConfigWrites:
    """The epochs of all writes of a config, in the order in which Redis saw them."""

    def __init__(self, url: str, name: str) -> None:
        self.epochs: list[int] = []
        self._url, self._key = url, Keys.of(name).config

    async def __aenter__(self) -> Self:
        self._redis = Redis.from_url(self._url, decode_responses=True)
        self._monitor = await self._redis.monitor().__aenter__()
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._monitor.__aexit__(None, None, None)
        await self._redis.aclose()

    async def _read(self) -> None:
        async for command in self._monitor.listen():
            said = command["command"]
            if said.startswith("HSET") and self._key in said and (found := re.search(r'\bepoch"? "?(\d+)', said)):
                self.epochs.append(int(found[1]))


async def test_one_of_three_leads_and_a_killed_leader_is_replaced_while_grants_go_on(
    replicas: Replicas, server: RedisServer
) -> None:
    """kopf#51, #734, #1266; kubernetes-client/python#1669: SIGKILL under load, again and again."""
    for _ in range(3):
        await asyncio.to_thread(replicas.add)
    replicas.dsem.apply("api", limit=2)
    await asyncio.to_thread(replicas.dsem.ready, "api")
    name = f"{replicas.dsem.namespace}/api"
    took = []
    async with ConfigWrites(server.url, name) as writes, load(name, server.url) as grants:
        for _ in range(KILLS):
            leader = await asyncio.to_thread(replicas.leader)
            followers = [process for process in replicas.all if process is not leader]
            assert [process.get("/readyz")[0] for process in followers] == [200, 200]
            before, start = replicas.holder(), time.monotonic()
            leader.kill()
            await asyncio.to_thread(replicas.leader)
            took.append(time.monotonic() - start)
            assert replicas.holder() != before
            await asyncio.to_thread(leader.start)
        leader = await asyncio.to_thread(replicas.leader)
        replicas.dsem("scale", "dsem", "api", "--replicas=1")
        await asyncio.to_thread(eventually, lambda: replicas.dsem.status("api")["limit"] == 1)
    assert max(took) < DURATION + 2, took
    assert writes.epochs == sorted(writes.epochs), "an earlier leader wrote after a later one"
    assert len(set(writes.epochs)) >= KILLS
    assert max(later - earlier for earlier, later in itertools.pairwise(grants)) < 1
