"""What is not the operator's: other kinds of the same name, and a watch that says nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING

import pytest
from kubernetes.aio import client, config
from redis.asyncio import Redis
from tests.cluster.conftest import eventually
from tests.cluster.test_operator import until

from distributed_semaphore.protocol import Keys
from semaphore_operator import sweep as sweeping
from semaphore_operator.kube import Kube
from semaphore_operator.record import Record
from semaphore_operator.registry import Registry
from semaphore_operator.settings import Settings
from semaphore_operator.sweep import Sweep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.conftest import Kubectl, Resources, StartOperator

    from controlplane import ControlPlane
    from distributed_semaphore.testing import RedisServer

OTHER = "distributedsemaphores.locks.example.com"
ANYTHING = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}


@pytest.fixture
def other(kubectl: Kubectl) -> Iterator[str]:
    """A definition of another group with the same plural and kind."""
    names = {"plural": "distributedsemaphores", "kind": "DistributedSemaphore"}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": ANYTHING}
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": OTHER},
        "spec": {"group": "locks.example.com", "names": names, "scope": "Namespaced", "versions": [version]},
    }
    kubectl("apply", "--filename=-", stdin=json.dumps(definition))
    kubectl("wait", "--for=condition=Established", f"crd/{OTHER}", "--timeout=20s")
    yield OTHER
    kubectl("delete", "crd", OTHER, "--timeout=20s")


async def test_a_kind_of_another_group_with_the_same_names_is_left_alone(
    other: str, dsem: Resources, redis_server: RedisServer, start_operator: StartOperator
) -> None:
    """prefect#21208."""
    theirs = {
        "apiVersion": "locks.example.com/v1alpha1",
        "kind": "DistributedSemaphore",
        "metadata": {"name": "theirs"},
        "spec": {"limit": 3},
    }
    eventually(lambda: "theirs" in dsem("apply", "--filename=-", stdin=json.dumps(theirs)))
    before = dsem("get", other, "theirs", "--output=yaml")
    operator = start_operator(f"--redis={redis_server.url}", "--sweep=0.1", "--patch=0.1")
    dsem.apply("ours", limit=2)
    dsem.ready("ours")
    async with Redis.from_url(redis_server.url) as redis:
        assert await redis.exists(Keys.of(f"{dsem.namespace}/ours").config)
        assert not await redis.exists(Keys.of(f"{dsem.namespace}/theirs").config)
    assert ("theirs", dsem.namespace) not in operator.metrics("semaphore_limit")
    assert dsem("get", other, "theirs", "--output=yaml") == before
    dsem("delete", other, "theirs", "--timeout=10s")  # no finalizer holds it


async def test_what_a_silent_watch_did_not_say_is_made_up_for_by_the_next_listing(
    cluster: ControlPlane, dsem: Resources, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kopf#1120, #698: here the watch says nothing at all."""
    monkeypatch.setattr(sweeping, "LIST_EVERY", 0.2)
    settings = Settings(redis=redis_server.url, namespaces=(dsem.namespace,), sweep=0.1, patch=0.1)
    dsem.apply("edited", limit=2)
    dsem.apply("deleted", limit=2)
    keys = [Keys.of(f"{dsem.namespace}/{name}").config for name in ("edited", "deleted")]
    configuration = client.Configuration()
    await config.load_kube_config(config_file=str(cluster.kubeconfig), client_configuration=configuration)
    async with (
        Kube(client.ApiClient(configuration)) as kube,
        Redis.from_url(redis_server.url, decode_responses=True) as redis,
    ):
        running = asyncio.create_task(Sweep(settings, Registry(), kube, Record()).run())

        async def limits() -> list[str | None]:
            return [await redis.hget(key, "limit") for key in keys]

        async def written() -> bool:
            return await limits() == ["2", "2"]

        async def made_up_for() -> bool:
            return await limits() == ["7", None]

        await until(written)
        dsem("scale", "dsem", "edited", "--replicas=7")
        dsem("delete", "dsem", "deleted", "--timeout=10s")
        await until(made_up_for)
        await until(lambda: dsem.status("edited").get("limit") == 7)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
