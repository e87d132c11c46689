"""What the operator does while something is broken: itself, Redis, the API server, its rights.

Whatever its state, SIGTERM ends it at once: `start_operator` checks that of each operator that it has started.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from tests.cluster.conftest import CRDS, Resources, eventually, kubectl_of
from tests.cluster.operator_process import OperatorProcess

import redis as redis_py
from controlplane import ControlPlane
from distributed_semaphore import AsyncSemaphore
from distributed_semaphore.testing import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.conftest import StartOperator

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"
QUICK = ("--sweep=0.2", "--patch=0.2")


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A Redis that the test may stop."""
    with RedisServer() as running:
        yield running


@pytest.fixture
def own(dsem: Resources) -> Iterator[Resources]:
    """The test's own semaphores; none is left that waits for an operator that has ended."""
    yield dsem
    for each in json.loads(dsem("get", "dsem", "--output=json"))["items"]:
        name = each["metadata"]["name"]
        dsem("patch", "dsem", name, "--type=merge", '--patch={"metadata":{"finalizers":null}}')


async def test_grants_go_on_while_the_operator_is_killed(
    own: Resources, server: RedisServer, start_operator: StartOperator
) -> None:
    """argo-workflows#10286, #8684: it is not in the data path, and is right again within a sweep."""
    operator = start_operator("--redis", server.url, "--namespaces", own.namespace, *QUICK)
    own.apply("api", limit=2)
    own.ready("api")
    semaphore = AsyncSemaphore(f"{own.namespace}/api", redis=server.url)
    grants: list[float] = []
    stop = False

    async def work() -> None:
        while not stop:
            async with semaphore:
                grants.append(time.monotonic())
                await asyncio.sleep(0.02)

    workers = [asyncio.create_task(work()) for _ in range(6)]
    for _ in range(2):
        await asyncio.to_thread(eventually, lambda: own.status("api").get("waiting", 0) > 0)
        operator.kill()
        await asyncio.sleep(0.3)
        await asyncio.to_thread(operator.start)
    held = [await semaphore.acquire(priority=10) for _ in range(2)]
    await asyncio.to_thread(eventually, lambda: operator.get("/readyz")[0] == 200)
    await asyncio.to_thread(eventually, lambda: own.status("api").get("waiting") == 6, 5)
    fences = {holder["fence"] for holder in own.status("api")["heldBy"]}
    stop = True
    for slot in held:
        slot.give_back()
    await asyncio.gather(*workers)
    assert fences == {slot.fence for slot in held}
    assert max(later - earlier for earlier, later in itertools.pairwise(grants[:-6])) < 3
    assert own.conditions("api")["Ready"] == ("True", "Configured")


def test_redis_stopped_is_said_and_healed(own: Resources, server: RedisServer, start_operator: StartOperator) -> None:
    """akb#295: no probe fails for it, so nothing is restarted."""
    operator = start_operator("--redis", server.url, "--namespaces", own.namespace, *QUICK)
    own.apply("api", limit=2, lease="1s")
    own.ready("api")
    server.stop()
    eventually(lambda: own.conditions("api")["RedisAvailable"] == ("False", "ConnectionFailed"))
    assert own.conditions("api")["Ready"] == own.conditions("api")["QueueStuck"] == ("Unknown", "RedisUnavailable")
    assert own.status("api")["summary"] == "RedisUnavailable"
    assert str(server.port) in own.message("api", "RedisAvailable")
    assert operator.metrics("semaphore_operator_redis_up") == {(): 0}
    assert operator.metrics("semaphore_operator_errors_total")[("redis",)] > 0
    assert operator.metrics("semaphore_limit") == {}, "what is not known is not told"
    own.apply("late", limit=1)  # nothing of this is held up by Redis
    eventually(lambda: own.conditions("late").get("RedisAvailable") == ("False", "ConnectionFailed"))
    assert operator.get("/livez")[0] == operator.get("/readyz")[0] == 200
    assert operator.text.count("Redis cannot be used") <= 2, (
        "said when it begins (closed, then refused), not each sweep"
    )
    server.start()
    own.ready("api", "late")
    assert operator.metrics("semaphore_operator_redis_up") == {(): 1}
    events = {name: [reason for _, reason, _ in own.events(name)] for name in ("api", "late")}
    assert events == {"api": ["ConfigRestored"], "late": []}, "nobody can have held a slot of the late one"


def test_a_wrong_password_is_said_and_corrected_without_a_restart(
    own: Resources, start_operator: StartOperator, tmp_path: Path
) -> None:
    with RedisServer(args=("--requirepass", "right-secret")) as server:
        address = tmp_path / "url"
        address.write_text(f"redis://:wrong-secret@127.0.0.1:{server.port}/0")
        operator = start_operator("--redis-file", str(address), "--namespaces", own.namespace, *QUICK)
        own.apply("api", limit=2)
        eventually(lambda: own.conditions("api").get("RedisAvailable") == ("False", "AuthenticationFailed"))
        address.write_text(f"redis://:right-secret@127.0.0.1:{server.port}/0\n")
        own.ready("api")
        address.write_text("")
        said = "which Redis"
        with redis_py.Redis.from_url(f"redis://:right-secret@127.0.0.1:{server.port}/0") as store:
            store.client_kill_filter(_type="normal")
        eventually(lambda: said in operator.text)
        everything = operator.text + own("get", "dsem,events", "--output=yaml")
    assert "secret" not in everything.replace("Secret", "")


def test_a_redis_that_is_gone_for_good_does_not_hold_up_deletion(
    own: Resources, server: RedisServer, start_operator: StartOperator
) -> None:
    """messaging-topology-operator#30, #786, #1206."""
    start_operator("--redis", server.url, "--namespaces", own.namespace, "--finalizer=1", *QUICK)
    own.apply("api", limit=2)
    own.ready("api")
    server.stop()
    own("delete", "dsem", "api", "--timeout=20s")
    eventually(lambda: [reason for _, reason, _ in own.events("api")] == ["KeysLeft"])
    [(kind, _, said)] = own.events("api")
    assert kind == "Warning"
    assert f"redis-cli --scan --pattern 'sem:{{{own.namespace}/api}}:*' | xargs redis-cli unlink" in said


def test_rights_that_are_missing_are_named_and_noticed_when_they_come(
    own: Resources, server: RedisServer, start_operator: StartOperator, cluster: ControlPlane
) -> None:
    """With a Role alone, and exactly the rules of docs/reference.md."""
    own("create", "serviceaccount", "operator")
    account = cluster.service_account_kubeconfig(own.namespace, "operator")
    own.apply("api", limit=2)
    operator = start_operator("--redis", server.url, "--namespaces", own.namespace, *QUICK, kubeconfig=account)
    eventually(lambda: "this account may not list distributedsemaphores" in operator.text)
    user = f"system:serviceaccount:{own.namespace}:operator"
    assert f'User "{user}" cannot list resource "distributedsemaphores"' in operator.text
    assert "docs/reference.md" in operator.text
    assert operator.get("/readyz")[0] == 503
    assert operator.get("/livez")[0] == 200

    [documented] = re.findall(r"```yaml\n(rules:\n.*?)```", REFERENCE.read_text(), re.DOTALL)
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "operator"}}
    own("apply", "--filename=-", stdin=json.dumps(role | yaml.safe_load(documented)))
    own("create", "rolebinding", "operator", "--role=operator", f"--serviceaccount={own.namespace}:operator")
    own.ready("api")
    eventually(lambda: operator.get("/readyz")[0] == 200)
    own("scale", "dsem", "api", "--replicas=3")
    eventually(lambda: own.status("api")["limit"] == 3)
    with redis_py.Redis.from_url(server.url) as store:
        store.delete(f"sem:{{{own.namespace}/api}}:config")
    eventually(lambda: "ConfigRestored" in [reason for _, reason, _ in own.events("api")])
    own("delete", "dsem", "api", "--timeout=10s")
    assert operator.text.count("forbidden") == 1, "said once, and nothing is missing since"


def test_a_crd_that_is_not_installed_is_named_and_noticed_when_it_comes(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("USE_EXISTING_CLUSTER", raising=False)
    with ControlPlane(controller_manager=False) as plane:
        operator = OperatorProcess(plane.kubeconfig, tmp_path / "log", "--redis", server.url, *QUICK).start()
        try:
            eventually(lambda: "distributedsemaphores.semaphores.dev is not installed here" in operator.text)
            assert "kubectl apply -f crds/" in operator.text
            assert operator.get("/readyz")[0] == 503
            kubectl = kubectl_of(plane)
            kubectl("apply", f"--filename={CRDS}")
            kubectl("wait", "--for=condition=Established", "crd/distributedsemaphores.semaphores.dev", "--timeout=20s")
            dsem = Resources(kubectl, "default")
            dsem.apply("api", limit=2)
            dsem.ready("api")
            eventually(lambda: dsem.get("api")["metadata"]["finalizers"] == ["semaphores.dev/operator"])

            plane.stop_api_server()
            [sweeps] = operator.metrics("semaphore_operator_sweeps_total").values()
            eventually(lambda: operator.metrics("semaphore_operator_sweeps_total")[()] > sweeps + 5)
            assert operator.get("/livez")[0] == 200
            plane.start_api_server()
            dsem("scale", "dsem", "api", "--replicas=3")
            eventually(lambda: dsem.status("api")["limit"] == 3)

            kubectl("delete", "crd", "distributedsemaphores.semaphores.dev", "--timeout=20s")  # resources go first
            with redis_py.Redis.from_url(server.url) as store:
                assert store.keys("sem:*") == []
            kubectl("apply", f"--filename={CRDS}")
            kubectl("wait", "--for=condition=Established", "crd/distributedsemaphores.semaphores.dev", "--timeout=20s")
            dsem.apply("again", limit=2)
            dsem.ready("again")
            eventually(lambda: "finalizers" in dsem.get("again")["metadata"])
            assert operator.running
        finally:
            assert operator.stop() == 0


def test_a_busy_resource_is_written_at_most_once_a_period(
    own: Resources, server: RedisServer, start_operator: StartOperator
) -> None:
    operator = start_operator("--redis", server.url, "--namespaces", own.namespace, "--sweep=0.1", "--patch=0.5")
    own.apply("api", limit=1)
    own.ready("api")

    def writes() -> float:
        return operator.metrics("semaphore_operator_status_writes_total")[()]

    start, before = time.monotonic(), writes()
    for limit in itertools.cycle((2, 3)):
        own("scale", "dsem", "api", f"--replicas={limit}")
        if time.monotonic() - start > 1.5:
            break
    written, elapsed = writes() - before, time.monotonic() - start
    assert 2 <= written <= elapsed / 0.5 + 1
    eventually(lambda: own.status("api")["observedGeneration"] == own.get("api")["metadata"]["generation"])


def test_a_start_without_kubernetes_says_what_is_missing(tmp_path: Path) -> None:
    operator = OperatorProcess(tmp_path / "none", tmp_path / "log", "--redis=redis://127.0.0.1:1/0").start()
    assert operator.end() == 1
    assert "which Kubernetes? not in a pod, and no kubeconfig" in operator.text
    assert "Traceback" not in operator.text
