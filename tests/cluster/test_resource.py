"""A resource's whole life: edited, deleted and made again while its semaphore is in use, operator or not."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import TYPE_CHECKING

import pytest
from kubernetes.aio import client, config
from redis.asyncio import Redis
from tests.cluster.conftest import Resources, eventually
from tests.cluster.operator_process import OperatorProcess

from distributed_semaphore import AsyncSemaphore, Closed, Slot
from distributed_semaphore.protocol import Keys
from semaphore_operator.events import config_restored
from semaphore_operator.kube import Kube
from semaphore_operator.models import Resource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.cluster.conftest import Kubectl, StartOperator

    from controlplane import ControlPlane
    from distributed_semaphore.testing import RedisServer

QUICK = ("--sweep=0.1", "--patch=0.1")
FAULT = re.compile(r"^.* (?:WARNING|ERROR|CRITICAL) .*$|^Traceback.*$", re.MULTILINE)


@pytest.fixture(scope="module")
def process(
    cluster: ControlPlane, crd: None, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One for all tests here, of all namespaces."""
    log = tmp_path_factory.mktemp("operator") / "log"
    started = OperatorProcess(cluster.kubeconfig, log, "--redis", redis_server.url, *QUICK).start()
    yield started
    assert started.stop() == 0


@pytest.fixture
def operator(process: OperatorProcess) -> OperatorProcess:
    """The operator, running whatever the test before did to it."""
    return process if process.running else process.start()


@pytest.fixture
def semaphore(dsem: Resources, redis_server: RedisServer) -> AsyncSemaphore:
    return AsyncSemaphore(f"{dsem.namespace}/api", redis=redis_server.url)


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_server.url, decode_responses=True) as connection:
        yield connection


@contextlib.asynccontextmanager
async def waiting(semaphore: AsyncSemaphore, size: int) -> AsyncIterator[list[asyncio.Task[Slot]]]:
    """Give requests that wait, in the order of their arrival; none is left over."""
    tasks = [asyncio.create_task(semaphore.acquire()) for _ in range(size)]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Slot):
                outcome.give_back()


async def until(condition: Callable[[], bool], timeout: float = 10.0) -> float:
    """Wait while the loop goes on; give the seconds it took."""
    return await asyncio.to_thread(eventually, condition, timeout)


def test_nothing_is_complained_of_from_the_start_while_all_is_well(
    start_operator: StartOperator, redis_server: RedisServer, dsem: Resources
) -> None:
    operator = start_operator("--redis", redis_server.url, "--namespaces", dsem.namespace, *QUICK)
    dsem.apply("api", limit=2)
    dsem.ready("api")
    dsem("scale", "dsem", "api", "--replicas=3")
    eventually(lambda: dsem.status("api")["limit"] == 3)
    dsem("delete", "dsem", "api", "--timeout=10s")
    assert operator.stop() == 0
    assert "serving /livez" in operator.text
    assert FAULT.findall(operator.text) == []


async def test_of_edits_in_quick_succession_the_last_one_stays(
    operator: OperatorProcess, dsem: Resources, redis: Redis
) -> None:
    dsem.apply("api", limit=1)
    dsem.ready("api")
    for limit in (7, 2, 9, 4, 6):
        dsem("scale", "dsem", "api", f"--replicas={limit}")
    generation = dsem.get("api")["metadata"]["generation"]
    await until(lambda: dsem.status("api").get("observedGeneration") == generation)
    config = await redis.hgetall(Keys.of(f"{dsem.namespace}/api").config)
    assert (config["limit"], config["generation"], dsem.status("api")["limit"]) == ("6", str(generation), 6)
    [sweeps] = operator.metrics("semaphore_operator_sweeps_total").values()
    await until(lambda: operator.metrics("semaphore_operator_sweeps_total")[()] >= sweeps + 5)
    assert (await redis.hgetall(Keys.of(f"{dsem.namespace}/api").config)) == config, "late news of an older edit"


async def test_an_event_that_a_namespace_does_not_take_because_it_goes_is_let_go(
    dsem: Resources, cluster: ControlPlane, kubectl: Kubectl, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused like a missing right, and no right is missing."""
    dsem.apply("api", limit=1)
    resource = Resource.read(dsem.get("api"))
    configuration = client.Configuration()
    await config.load_kube_config(config_file=str(cluster.kubeconfig), client_configuration=configuration)
    dsem("create", "configmap", "stays")
    dsem("patch", "configmap", "stays", "--type=merge", '--patch={"metadata":{"finalizers":["example.com/test"]}}')
    async with Kube(client.ApiClient(configuration)) as kube:
        await kube.event(resource, config_restored())
        assert [reason for _, reason, _ in dsem.events("api")] == ["ConfigRestored"]
        kubectl("delete", "namespace", dsem.namespace, "--wait=false")
        with pytest.raises(AssertionError, match="because it is being terminated"):
            dsem("create", "configmap", "late")
        await kube.event(resource, config_restored())
    dsem("patch", "configmap", "stays", "--type=merge", '--patch={"metadata":{"finalizers":null}}')
    assert caplog.messages == []


async def test_a_resource_made_again_counts_the_holders_of_the_one_before(
    operator: OperatorProcess, dsem: Resources, semaphore: AsyncSemaphore
) -> None:
    """`kubectl replace --force`, or an uninstall and an install: the limit holds across it."""
    dsem.apply("api", limit=1)
    dsem.ready("api")
    slot = await semaphore.acquire()
    await asyncio.to_thread(dsem, "delete", "dsem", "api", "--timeout=10s")
    dsem.apply("api", limit=1)
    dsem.ready("api")
    async with waiting(semaphore, 1) as [task]:
        await until(lambda: dsem.status("api").get("waiting") == 1)
        assert (dsem.status("api")["holders"], task.done(), slot.lost) == (1, False, False)
        assert await semaphore.release(slot)
        await asyncio.wait_for(asyncio.shield(task), 2)


async def test_what_happens_while_no_operator_runs_is_made_up_for_and_nothing_is_told_twice(
    operator: OperatorProcess, dsem: Resources, redis: Redis, redis_server: RedisServer
) -> None:
    edited, deleted, stuck = (
        AsyncSemaphore(f"{dsem.namespace}/{name}", redis=redis_server.url) for name in ("edited", "deleted", "stuck")
    )
    dsem.apply("edited", limit=0)
    dsem.apply("deleted", limit=1)
    dsem.apply("stuck", limit=1, alerts={"queueStuckAfter": "1s"})
    dsem.ready("edited", "deleted", "stuck")
    slot = await deleted.acquire()
    async with stuck, waiting(stuck, 1), waiting(edited, 2) as first_and_second, waiting(deleted, 1) as [sent_away]:
        await until(lambda: len(dsem.events("stuck")) == 1)
        await until(lambda: dsem.status("edited").get("waiting") == 2)
        before = dsem.status("stuck")["conditions"]
        operator.kill()
        dsem("scale", "dsem", "edited", "--replicas=1")
        dsem("delete", "dsem", "deleted", "--wait=false")
        assert not any(task.done() for task in [*first_and_second, sent_away])
        await asyncio.to_thread(operator.start)

        await asyncio.wait_for(asyncio.shield(first_and_second[0]), 10)
        await until(lambda: dsem.status("edited")["observedGeneration"] == 2)
        assert not first_and_second[1].done()

        with pytest.raises(Closed):
            await asyncio.wait_for(sent_away, 10)
        await until(lambda: "deleted" not in dsem("get", "dsem", "--output=name"))
        assert await deleted.release(slot)
        assert await redis.keys(f"{Keys.of(deleted.name).prefix}*") == []

        await until(lambda: operator.get("/readyz")[0] == 200)
        [sweeps] = operator.metrics("semaphore_operator_sweeps_total").values()
        await until(lambda: operator.metrics("semaphore_operator_sweeps_total")[()] >= sweeps + 3)
        assert [condition["type"] for condition in before if condition["status"] == "True"] == [
            "Ready",
            "RedisAvailable",
            "QueueStuck",
        ]
        assert dsem.status("stuck")["conditions"] == before, "with the times of their transitions"
        assert len(dsem.events("stuck")) == 1


async def test_a_redis_that_comes_back_empty_costs_no_holder_its_slot_and_no_waiter_its_place(
    operator: OperatorProcess, dsem: Resources, semaphore: AsyncSemaphore, redis_server: RedisServer
) -> None:
    dsem.apply("api", limit=1, lease="4s")
    dsem.ready("api")
    slot = await semaphore.acquire()
    async with waiting(semaphore, 3) as tasks:
        await until(lambda: dsem.status("api").get("waiting") == 3)
        redis_server.stop()
        try:
            await until(lambda: operator.metrics("semaphore_operator_redis_up") == {(): 0}, 2)
        finally:
            redis_server.start()
        await until(lambda: "ConfigRestored" in [reason for _, reason, _ in dsem.events("api")])
        await until(lambda: (dsem.status("api").get("holders"), dsem.status("api").get("waiting")) == (1, 3))
        assert not slot.lost
        assert not any(task.done() for task in tasks)
        assert await semaphore.release(slot)
        for number, task in enumerate(tasks):  # in the order they had before
            following = await asyncio.wait_for(asyncio.shield(task), 10)
            assert [other.done() for other in tasks] == [place <= number for place in range(3)]
            await semaphore.release(following)
    await until(lambda: dsem.conditions("api")["Ready"] == ("True", "Configured"))


async def test_a_newer_config_that_this_cluster_does_not_know_is_told_with_the_way_out(
    operator: OperatorProcess, dsem: Resources, semaphore: AsyncSemaphore, redis: Redis
) -> None:
    """etcd restored from a backup, or a second operator: neither of them wins by being the last to write."""
    dsem.apply("api", limit=1, lease="2s")
    dsem.ready("api")
    config = Keys.of(semaphore.name).config
    async with semaphore as slot:
        await redis.hset(config, mapping={"generation": 99, "limit": 5})
        await until(lambda: dsem.conditions("api")["Ready"] == ("False", "NotWritten"))
        said = dsem.message("api", "Ready")
        assert "does not take generation 1" in said
        assert "it has generation 99" in said
        assert dsem.status("api")["summary"] == "Pending"
        assert await redis.hget(config, "limit") == "5"
        assert said.endswith(f"redis-cli del '{config}'")
        await redis.delete(config)
        dsem.ready("api")
        assert await redis.hget(config, "limit") == "1"
        await asyncio.sleep(2.2)  # beyond the lease: had it not been put back, it would be another's
        assert not slot.lost
