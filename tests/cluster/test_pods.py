"""Pods that are gone: real pods of a real API server, without a node, and clients as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.cluster.conftest import eventually
from tests.cluster.test_operator import crowd, until

from distributed_semaphore import AsyncSemaphore
from distributed_semaphore.testing import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cluster.conftest import Resources, StartOperator

LABEL = {"semaphores.dev/client": "true"}
OPTIONS = ("--sweep=0.1", "--patch=0.1", "--pods=true")
HOLD = """
import asyncio, sys
from distributed_semaphore import AsyncSemaphore, SlotLost

async def hold():
    async with AsyncSemaphore(sys.argv[1]).slot() as slot:
        while slot.remaining() < 60:  # until it is confirmed, and so outlives the test should this process be killed
            await asyncio.sleep(0.05)
        print("held", flush=True)
        await asyncio.sleep(600)

try:
    asyncio.run(hold())
except SlotLost:
    print("lost", flush=True)
"""


class Pod:
    """A pod, and a process that holds a slot as if it were its container."""

    def __init__(self, dsem: Resources, name: str, server: RedisServer, labels: dict[str, str], node: str) -> None:
        self.name = name
        self._dsem = dsem
        spec = {"containers": [{"name": "worker", "image": "worker"}]} | ({"nodeName": node} if node else {})
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
        made = json.loads(dsem("create", "--filename=-", "--output=json", stdin=json.dumps(pod)))
        self.phase("Running")
        environment = os.environ | {
            "POD_NAME": name,
            "POD_NAMESPACE": dsem.namespace,
            "POD_UID": made["metadata"]["uid"],
            "SEMAPHORE_CLIENT": labels.get("semaphores.dev/client", ""),
            "SEMAPHORE_REDIS_URL": server.url,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, f"{dsem.namespace}/api"], env=environment, stdout=subprocess.PIPE, text=True
        )

    def holds(self) -> None:
        assert self.says() == "held"

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def crash(self) -> None:
        self.process.kill()

    def phase(self, phase: str) -> None:
        status = json.dumps({"status": {"phase": phase}})
        self._dsem("patch", "pod", self.name, "--subresource=status", f"--patch={status}")

    def delete(self, *options: str) -> None:
        self._dsem("delete", "pod", self.name, *options)

    def vanish(self) -> None:
        """Let the API server forget it, as when its node has said that all has ended."""
        self.delete("--grace-period=0", "--force")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def pod(dsem: Resources, server: RedisServer) -> Iterator[Callable[..., Pod]]:
    account = "serviceaccount/default"
    eventually(lambda: account in dsem("get", account, "--output=name", "--ignore-not-found"))
    pods: list[Pod] = []

    def start(name: str, labels: dict[str, str] = LABEL, node: str = "") -> Pod:
        pods.append(Pod(dsem, name, server, labels, node))
        return pods[-1]

    yield start
    for each in pods:
        each.process.kill()
        each.process.communicate()
        with contextlib.suppress(AssertionError):  # it has gone
            each.vanish()


def holding(dsem: Resources) -> set[str]:
    """The pods that the status shows as holders."""
    return {each.get("pod", "") for each in dsem.status("api").get("heldBy", [])}


async def test_slots_of_deleted_pods_go_to_who_waits_at_once(
    dsem: Resources, server: RedisServer, pod: Callable[..., Pod], start_operator: StartOperator
) -> None:
    """argo-workflows#4632, #6340: not after the lease, which is ten minutes here."""
    operator = start_operator(f"--redis={server.url}", f"--namespaces={dsem.namespace}", *OPTIONS)
    dsem.apply("api", limit=3, lease="10m")
    dsem.ready("api")
    pods = [pod(f"worker-{number}") for number in range(3)]
    for each in pods:
        each.holds()
    await until(lambda: holding(dsem) == {each.name for each in pods})
    semaphore = AsyncSemaphore(f"{dsem.namespace}/api", redis=server.url)
    async with crowd(semaphore, 5) as waiting:
        await until(lambda: dsem.status("api").get("waiting") == 5)
        for each in pods[1:]:
            each.crash()
        for each in pods:
            each.vanish()
        await until(lambda: waiting.holding == 3)
        assert pods[0].says() == "lost", "its process outlived its pod, and is told"
        await until(lambda: holding(dsem) == {""})
    await until(lambda: operator.metrics("semaphore_operator_freed_total")[("pod",)] == 3)
    found = [event for event in dsem.events("api") if event[1] == "PodsGone"]
    assert {event[0] for event in found} == {"Normal"}
    assert all(sum(f"{dsem.namespace}/{each.name}" in event[2] for event in found) == 1 for each in pods)


async def test_only_what_has_ended_and_had_the_label_is_freed(
    dsem: Resources, server: RedisServer, pod: Callable[..., Pod], start_operator: StartOperator
) -> None:
    start_operator(f"--redis={server.url}", *OPTIONS)
    dsem.apply("api", limit=9, lease="10m")
    dsem.ready("api")
    ended, another, stranger, unreachable = (
        pod("ended"),
        pod("another"),
        pod("stranger", {}),
        pod("unreachable", node="a-node-that-went-silent"),
    )
    pods = [ended, another, stranger, unreachable]
    for each in pods:
        each.holds()
        each.crash()
    await until(lambda: holding(dsem) == {each.name for each in pods})
    stranger.vanish()
    unreachable.delete("--wait=false")  # which waits for a kubelet that nobody hears
    deleted = dsem("get", "pod", "unreachable", "--output=jsonpath={.metadata.deletionTimestamp}")
    assert deleted
    dsem("label", "pod", "another", "semaphores.dev/client-")
    ended.phase("Succeeded")
    # Each look judges all clients: when this one is free, the others were left alone.
    await until(lambda: holding(dsem) == {"another", "stranger", "unreachable"})
    unreachable.vanish()
    await until(lambda: holding(dsem) == {"another", "stranger"})


async def test_a_pod_that_went_while_the_operator_was_down_is_found(
    dsem: Resources, server: RedisServer, pod: Callable[..., Pod], start_operator: StartOperator
) -> None:
    operator = start_operator(f"--redis={server.url}", *OPTIONS)
    dsem.apply("api", limit=9, lease="10m")
    dsem.ready("api")
    pods = [pod("went"), pod("ended"), pod("stays"), pod("unlabelled"), pod("stranger", {})]
    for each in pods:
        each.holds()
    await until(lambda: len(holding(dsem)) == 5)
    operator.stop()
    went, ended, _, unlabelled, stranger = pods
    for each in (went, stranger):
        each.crash()
        each.vanish()
    ended.phase("Failed")
    dsem("label", "pod", unlabelled.name, "semaphores.dev/client-")
    operator.start()
    await until(lambda: holding(dsem) == {"stays", "unlabelled", "stranger"})
