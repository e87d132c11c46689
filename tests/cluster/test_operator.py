"""What the operator does while everything works: real API server, real kubectl, real Redis, real clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis
from tests.cluster.conftest import eventually
from tests.cluster.operator_process import OperatorProcess

from distributed_semaphore import AsyncSemaphore, Closed
from distributed_semaphore.protocol import Keys

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.cluster.conftest import Resources

    from controlplane import ControlPlane
    from distributed_semaphore.testing import RedisServer

SWEEP = 0.1


@pytest.fixture(scope="module")
def operator(
    cluster: ControlPlane, crd: None, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """One for all tests here, of all namespaces."""
    log = tmp_path_factory.mktemp("operator") / "log"
    options = ("--redis", redis_server.url, "--sweep", str(SWEEP), "--patch", str(SWEEP))
    process = OperatorProcess(cluster.kubeconfig, log, *options).start()
    yield process
    assert process.stop() == 0
    assert "Traceback" not in process.text, process.text


@pytest.fixture
def mine(operator: OperatorProcess, dsem: Resources) -> Resources:
    """The semaphores of the test's own namespace, which the operator serves."""
    return dsem


@pytest.fixture
async def redis(redis_server: RedisServer) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_server.url, decode_responses=True) as connection:
        yield connection


@pytest.fixture
def semaphore(mine: Resources, redis_server: RedisServer) -> AsyncSemaphore:
    return AsyncSemaphore(f"{mine.namespace}/api", redis=redis_server.url)


class Crowd:
    """Requests that wait, each in a task of its own."""

    def __init__(self, semaphore: AsyncSemaphore, size: int) -> None:
        self.tasks = [asyncio.create_task(semaphore.acquire()) for _ in range(size)]

    @property
    def holding(self) -> int:
        return sum(task.done() and not task.cancelled() for task in self.tasks)

    async def leave(self) -> None:
        for task in self.tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self.tasks, return_exceptions=True):
            if not isinstance(outcome, BaseException):
                outcome.give_back()


@contextlib.asynccontextmanager
async def crowd(semaphore: AsyncSemaphore, size: int) -> AsyncIterator[Crowd]:
    waiting = Crowd(semaphore, size)
    try:
        yield waiting
    finally:
        await waiting.leave()


async def until(condition, timeout: float = 20.0) -> float:
    """Wait for something while the loop goes on; give the seconds it took."""
    start = time.monotonic()
    while not (await condition() if asyncio.iscoroutinefunction(condition) else condition()):
        assert time.monotonic() - start < timeout, f"not within {timeout} s"
        await asyncio.sleep(0.02)
    return time.monotonic() - start


async def test_the_status_shows_who_holds_and_who_waits(mine: Resources, semaphore: AsyncSemaphore) -> None:
    mine.apply("api", limit=2, lease="5s")
    mine.ready("api")
    async with crowd(semaphore, 5):
        await until(lambda: mine.status("api").get("waiting") == 3)
        status = mine.status("api")
        row = mine("get", "dsem", "api").splitlines()[1].split()
        described = mine("describe", "dsem", "api")
    assert (status["holders"], status["limit"], status["leaseSeconds"]) == (2, 2, 5)
    assert status["key"] == f"sem:{{{mine.namespace}/api}}:"
    assert status["observedGeneration"] == mine.get("api")["metadata"]["generation"] == 1
    assert {holder["pid"] for holder in status["heldBy"]} == {str(os.getpid())}
    assert [waiter["position"] for waiter in status["waitingLine"]] == [1, 2, 3]
    fences = [holder["fence"] for holder in status["heldBy"]]
    assert fences == sorted(fences)
    assert row[:4] == ["api", "2", "2", "3"]
    assert row[5:7] == ["True", "Active"]
    for word in ("Held By", "Waiting Line", "Position", "Fence", "QueueStuck"):
        assert word in described
    await until(lambda: mine.status("api")["holders"] == 0 and mine.status("api")["waiting"] == 0)
    assert "oldestWaiterSince" not in mine.status("api")


async def test_limit_0_to_3_lets_three_of_five_waiters_in(mine: Resources, semaphore: AsyncSemaphore) -> None:
    """kueue#14965, curator#596: felt within 2 s, in order, without any release."""
    mine.apply("api", limit=0)
    mine.ready("api")
    async with crowd(semaphore, 5) as waiting:
        await until(lambda: mine.status("api").get("waiting") == 5)
        assert waiting.holding == 0
        mine.apply("api", limit=3)
        assert await until(lambda: waiting.holding == 3) < 2
        assert [task.done() for task in waiting.tasks] == [True, True, True, False, False]
        await until(lambda: mine.status("api")["holders"] == 3 and mine.status("api")["waiting"] == 2)


async def test_kubectl_scale_is_felt_at_once(mine: Resources, semaphore: AsyncSemaphore) -> None:
    mine.apply("api", limit=2)
    mine.ready("api")
    async with crowd(semaphore, 6) as waiting:
        await until(lambda: waiting.holding == 2)
        mine("scale", "dsem", "api", "--replicas=5")
        assert await until(lambda: waiting.holding == 5) < 2


async def test_pausing_stops_grants_and_closing_sends_waiters_away(mine: Resources, semaphore: AsyncSemaphore) -> None:
    mine.apply("api", limit=1, state="Paused")
    mine.ready("api")
    async with crowd(semaphore, 2) as waiting:
        await until(lambda: mine.status("api").get("waiting") == 2)
        assert mine.status("api")["summary"] == "Paused"
        mine.apply("api", limit=1, state="Active")
        await until(lambda: waiting.holding == 1)
        mine.apply("api", limit=1, state="Closed")
        with pytest.raises(Closed):
            await asyncio.wait_for(waiting.tasks[1], 5)
        assert not waiting.tasks[0].result().lost


async def test_deletion_sends_waiters_away_and_lets_holders_finish(
    mine: Resources, semaphore: AsyncSemaphore, redis: Redis
) -> None:
    mine.apply("api", limit=1, lease="1s")
    mine.ready("api")
    slot = await semaphore.acquire()
    async with crowd(semaphore, 2) as waiting:
        await until(lambda: mine.status("api").get("waiting") == 2)
        await asyncio.to_thread(mine, "delete", "dsem", "api", "--timeout=20s")  # which does not wait for holders
        for task in waiting.tasks:
            with pytest.raises(Closed):
                await asyncio.wait_for(task, 5)
    await asyncio.sleep(1.3)  # beyond the lease, which is renewed still
    assert not slot.lost
    assert await redis.keys(f"{Keys.of(semaphore.name).prefix}*")
    assert await semaphore.release(slot)
    assert await redis.keys(f"{Keys.of(semaphore.name).prefix}*") == []


async def test_deletion_succeeds_when_the_keys_are_gone_already(mine: Resources, redis: Redis) -> None:
    """Twingate#403, kopf#1134."""
    mine.apply("api", limit=1, state="Paused")
    mine.ready("api")
    await redis.delete(Keys.of(f"{mine.namespace}/api").config)
    await asyncio.to_thread(mine, "delete", "dsem", "api", "--timeout=5s")


async def test_retain_leaves_redis_as_it_is(mine: Resources, semaphore: AsyncSemaphore, redis: Redis) -> None:
    """keycloak-operator#84: no key is touched, and holders go on."""
    mine.apply("api", limit=1, deletionPolicy="Retain")
    mine.ready("api")
    async with semaphore as slot:
        config = await redis.hgetall(Keys.of(semaphore.name).config)
        mine("delete", "dsem", "api", "--timeout=10s")
        await asyncio.sleep(3 * SWEEP)
        assert await redis.hgetall(Keys.of(semaphore.name).config) == config
        assert not slot.lost


async def test_the_older_of_two_resources_has_the_name_and_the_other_takes_over(
    mine: Resources, redis_server: RedisServer, operator: OperatorProcess
) -> None:
    """strimzi#12132, crossplane#5093: no holder is lost, and no waiter loses its place."""
    shared = AsyncSemaphore(f"{mine.namespace}/shared", redis=redis_server.url)
    mine.apply("first", name="shared", limit=1)
    mine.ready("first")
    await asyncio.sleep(1.1)  # creationTimestamp has seconds
    mine.apply("second", name="shared", limit=2)
    await until(lambda: mine.conditions("second").get("Ready") == ("False", "ResourceConflict"))
    assert "belongs to the older resource first; delete one of them" in mine.message("second", "Ready")
    assert mine.status("second")["summary"] == "Conflict"
    assert mine.conditions("first")["Ready"] == ("True", "Configured")
    await until(lambda: [reason for _, reason, _ in mine.events("second")] == ["ResourceConflict"])
    async with shared as slot, crowd(shared, 1) as waiting:
        mine("delete", "dsem", "first", "--timeout=10s")
        mine.ready("second")
        assert await until(lambda: waiting.holding == 1) < 2, "the heir's limit is 2"
        assert not slot.lost
        await until(lambda: mine.status("second")["holders"] == 2)
    series = operator.metrics("semaphore_limit")
    assert (("second", mine.namespace) in series, ("first", mine.namespace) in series) == (True, False)


async def test_a_quiet_resource_is_never_written(mine: Resources, operator: OperatorProcess) -> None:
    """messaging-topology-operator#251, knative/serving#1181."""
    mine.apply("api", limit=1)
    mine.ready("api")
    await until(lambda: mine.status("api").get("throughput") is not None)
    before = mine.get("api")["metadata"]["resourceVersion"]
    [sweeps] = operator.metrics("semaphore_operator_sweeps_total").values()
    await until(lambda: operator.metrics("semaphore_operator_sweeps_total")[()] >= sweeps + 20)
    assert mine.get("api")["metadata"]["resourceVersion"] == before


async def test_a_stuck_queue_is_told_once_with_cause_head_and_holder(
    mine: Resources, semaphore: AsyncSemaphore, operator: OperatorProcess
) -> None:
    mine.apply("api", limit=1, alerts={"queueStuckAfter": "2s"})
    mine.ready("api")
    slot = await semaphore.acquire()
    async with crowd(semaphore, 2) as waiting:
        await until(lambda: mine.conditions("api")["QueueStuck"] == ("True", "HoldersNotReleasing"))
        said = mine.message("api", "QueueStuck")
        holder = f"{os.getpid()} on"
        assert "nothing was granted since" in said
        assert said.count(holder) == 2, "it names the longest holder and the first in line"
        assert "its slots are free again within 30s" in said
        assert mine.status("api")["summary"] == "QueueStuck"
        version = mine.get("api")["metadata"]["resourceVersion"]
        await until(lambda: mine.events("api") == [("Warning", "HoldersNotReleasing", said)])
        stuck = ("api", mine.namespace, "HoldersNotReleasing", "QueueStuck")
        assert operator.metrics("semaphore_condition")[stuck] == 1
        await asyncio.sleep(5 * SWEEP)
        assert mine.get("api")["metadata"]["resourceVersion"] == version, "stuck, and nothing else happens"
        assert "HoldersNotReleasing" in mine("describe", "dsem", "api")
        slot.give_back()
        await until(lambda: waiting.holding == 1)
        await until(lambda: mine.conditions("api")["QueueStuck"] == ("False", "Moving"))
        assert stuck not in operator.metrics("semaphore_condition")
        await until(lambda: [reason for _, reason, _ in mine.events("api")].count("Moving") == 1)
    assert [reason for kind, reason, _ in mine.events("api") if kind == "Warning"] == ["HoldersNotReleasing"]


async def test_a_queue_that_moves_is_not_stuck_however_long_it_is(mine: Resources, semaphore: AsyncSemaphore) -> None:
    """mimir#2625, kueue#6496."""
    mine.apply("api", limit=1, alerts={"queueStuckAfter": "3s"})
    mine.ready("api")

    async def work() -> None:
        async with semaphore:
            await asyncio.sleep(0.25)

    jobs = [asyncio.create_task(work()) for _ in range(16)]  # longer than queueStuckAfter
    await until(lambda: mine.status("api").get("waiting", 0) > 0)
    while not all(job.done() for job in jobs):
        assert mine.conditions("api")["QueueStuck"][0] == "False"
        await asyncio.sleep(0.05)
    await asyncio.gather(*jobs)
    assert mine.events("api") == []


async def test_a_config_changed_by_hand_is_put_right(mine: Resources, redis: Redis) -> None:
    mine.apply("api", limit=2, lease="10s")
    mine.ready("api")
    config = Keys.of(f"{mine.namespace}/api").config
    right = await redis.hgetall(config)
    for wrong in ({"limit": "99"}, {"lease": "soon"}, {"state": "Open"}, {"uid": "another"}):
        await redis.hset(config, mapping=wrong)

        async def repaired() -> bool:
            return await redis.hgetall(config) == right

        assert await until(repaired) < 2
    await until(lambda: mine.conditions("api")["Ready"] == ("True", "Configured"))


async def test_a_lost_config_comes_back_and_nobody_loses_a_slot(
    mine: Resources, semaphore: AsyncSemaphore, redis: Redis
) -> None:
    """openstack-resource-controller#655: flushed under load; the limit holds and the holder goes on."""
    mine.apply("api", limit=1, lease="2s")
    mine.ready("api")
    slot = await semaphore.acquire()
    await until(lambda: mine.status("api").get("holders") == 1)
    keys = await redis.keys(f"{Keys.of(semaphore.name).prefix}*")
    await redis.delete(*keys)
    async with crowd(semaphore, 1) as waiting:
        await until(lambda: [reason for _, reason, _ in mine.events("api")] == ["ConfigRestored"])
        await asyncio.sleep(2.3)  # beyond the reclaim
        assert (slot.lost, waiting.holding) == (False, 0)
        assert await semaphore.release(slot)
        await until(lambda: waiting.holding == 1)


async def test_keys_that_disagree_are_put_right_and_told(
    mine: Resources, semaphore: AsyncSemaphore, redis: Redis, operator: OperatorProcess
) -> None:
    mine.apply("api", limit=2)
    mine.ready("api")
    prefix = Keys.of(semaphore.name).prefix
    counted = operator.metrics("semaphore_operator_repairs_total")
    async with semaphore as slot:
        await redis.zadd(prefix + "grants", {"gone.1.1": 7})
        await until(lambda: [reason for _, reason, _ in mine.events("api")] == ["EntriesRepaired"])
        assert "put right (unheld: 1): changed by hand" in mine.events("api")[0][2]
        await until(lambda: [one["fence"] for one in mine.status("api")["heldBy"]] == [slot.fence])
        assert not slot.lost
    after = operator.metrics("semaphore_operator_repairs_total")
    assert {kind: after[kind] - counted[kind] for kind in after if after[kind] != counted[kind]} == {("unheld",): 1}


async def test_no_series_outlives_its_resource(mine: Resources, operator: OperatorProcess) -> None:
    """external-secrets#231."""
    mine.apply("api", limit=7)
    mine.ready("api")
    of = ("api", mine.namespace)
    await until(lambda: operator.metrics("semaphore_limit").get(of) == 7)
    mine("delete", "dsem", "api", "--timeout=10s")
    await until(lambda: of not in operator.metrics("semaphore_limit"))
    assert not [labels for labels in operator.metrics("semaphore_condition") if labels[:2] == of]


def test_annotations_and_finalizer_are_the_operators_own(mine: Resources) -> None:
    """kopf#1087, kopf#1178."""
    mine.apply("api", limit=1)
    mine.ready("api")
    eventually(lambda: "semaphores.dev/last-handled-configuration" in mine.get("api")["metadata"]["annotations"])
    metadata = mine.get("api")["metadata"]
    assert metadata["finalizers"] == ["semaphores.dev/operator"]
    own = set(metadata["annotations"]) - {"kubectl.kubernetes.io/last-applied-configuration"}
    assert {name.partition("/")[0] for name in own} == {"semaphores.dev"}
    assert sum(len(metadata["annotations"][name]) for name in own) < 1024


def test_the_probes_answer(operator: OperatorProcess) -> None:
    eventually(lambda: operator.get("/readyz") == (200, "ok\n"))
    assert operator.get("/livez") == (200, "ok\n")
    assert operator.metrics("semaphore_operator_redis_up") == {(): 1}
    assert operator.get("/")[0] == 404
