"""A worker that finds its semaphore by the resource: real API server, real operator, and a process with its account."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import yaml
from tests.cluster.conftest import Resources, eventually
from tests.cluster.operator_process import OperatorProcess
from tests.redis.topologies import cluster as redis_cluster
from tests.redis.topologies import watched

import redis as redis_py
from distributed_semaphore.protocol import Keys
from distributed_semaphore.protocol.address import connect
from distributed_semaphore.testing import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from controlplane import ControlPlane

pytestmark = pytest.mark.usefixtures("operator")

PASSWORD = "s3cret"
PROGRAM = """
import asyncio, json, sys, time
from distributed_semaphore import AsyncSemaphore, SemaphoreError

async def hold(semaphore):
    async with semaphore as slot:
        return f"held with fence {slot.fence}"

for line in sys.stdin:
    start = time.monotonic()
    try:
        semaphore = AsyncSemaphore.from_resource(**json.loads(line))
        answer = semaphore.name, asyncio.run(hold(semaphore))
    except SemaphoreError as error:
        answer = type(error).__name__, str(error)
    print(json.dumps([*answer, time.monotonic() - start]), flush=True)
"""


class Answer(NamedTuple):
    said: str
    """The semaphore's name, or the kind of the error."""
    text: str
    seconds: float


class Worker:
    """A user's program, in a process of its own: it asks for a semaphore and holds a slot of it."""

    def __init__(self, kubeconfig: Path | str) -> None:
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("SEMAPHORE_", "POD_"))}
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**outside, "KUBECONFIG": str(kubeconfig)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def from_resource(self, name: str, **arguments: Any) -> Answer:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"name": name, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = Answer(*json.loads(self._process.stdout.readline()))
        assert PASSWORD not in answer.text
        return answer

    def close(self) -> None:
        with self._process:  # which closes its pipes, and waits
            self._process.kill()


@pytest.fixture(scope="module")
def worker(cluster: ControlPlane) -> Iterator[Worker]:
    """One that may read every resource."""
    process = Worker(cluster.kubeconfig)
    yield process
    process.close()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(args=("--requirepass", PASSWORD)) as running:
        yield running


@pytest.fixture(scope="module")
def url(server: RedisServer) -> str:
    return f"redis://:{PASSWORD}@127.0.0.1:{server.port}/0"


@pytest.fixture(scope="module")
def shown(server: RedisServer) -> str:
    """Its address as messages have it."""
    return f"redis://127.0.0.1:{server.port}/0"


@pytest.fixture(scope="module")
def operator(
    cluster: ControlPlane, crd: None, url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    log = tmp_path_factory.mktemp("operator") / "log"
    process = OperatorProcess(cluster.kubeconfig, log, "--redis", url, "--sweep=0.1", "--patch=0.1").start()
    yield process
    process.stop()


def test_a_worker_waits_for_the_operator_and_holds_a_slot(dsem: Resources, worker: Worker, url: str) -> None:
    """Applied in one go with its workers, as `kubectl apply -f folder/` does it."""
    dsem.apply("api", name="shared", limit=1)
    answer = worker.from_resource("api", namespace=dsem.namespace, redis=url)
    assert answer.said == f"{dsem.namespace}/shared"
    assert answer.text.startswith("held with fence ")


def test_a_worker_needs_no_more_than_get_and_no_namespace_in_its_own(
    dsem: Resources, cluster: ControlPlane, url: str
) -> None:
    dsem("create", "serviceaccount", "worker")
    own = Worker(cluster.service_account_kubeconfig(dsem.namespace, "worker"))
    try:
        dsem.apply("api", limit=1)
        dsem.ready("api")
        refused = own.from_resource("api", redis=url)
        assert refused.said == "ResourceUnreadable"
        assert f"DistributedSemaphore {dsem.namespace}/api cannot be read" in refused.text
        assert "allow `get` on distributedsemaphores.semaphores.dev" in refused.text
        dsem("create", "role", "worker", "--verb=get", "--resource=distributedsemaphores.semaphores.dev")
        dsem("create", "rolebinding", "worker", "--role=worker", f"--serviceaccount={dsem.namespace}:worker")

        def held() -> bool:
            return own.from_resource("api", redis=url).said == f"{dsem.namespace}/api"

        eventually(held)  # the API server takes a moment to know of a new role
    finally:
        own.close()


def test_a_resource_that_is_not_there_is_named_with_the_command_that_lists_those_that_are(
    dsem: Resources, worker: Worker, url: str
) -> None:
    answer = worker.from_resource("none", namespace=dsem.namespace, redis=url)
    assert answer.said == "ResourceUnreadable"
    assert f"DistributedSemaphore {dsem.namespace}/none cannot be read: there is none" in answer.text
    assert f"kubectl get dsem -n {dsem.namespace}" in answer.text


def test_several_kubeconfigs_are_read_as_kubectl_reads_them(
    dsem: Resources, cluster: ControlPlane, url: str, tmp_path: Path
) -> None:
    """Clusters in one file, users in another; missing and empty ones are passed over, the first current context counts.

    kubernetes-client/javascript#579: the kubernetes packages take the last one; Python's refuses an empty file, too.
    """
    whole = yaml.safe_load(cluster.kubeconfig.read_text())
    context = whole["contexts"][0]
    context["context"]["namespace"] = dsem.namespace
    wrong = {"name": "wrong", "context": {**context["context"], "namespace": "default"}}
    parts = {
        "empty": None,
        "clusters": {"clusters": whole["clusters"], "current-context": context["name"]},
        "users": {"users": whole["users"], "contexts": [context, wrong], "current-context": "wrong"},
    }
    for name, part in parts.items():
        (tmp_path / name).write_text(yaml.safe_dump(part) if part else "")
    files = [tmp_path / name for name in ("missing", *parts)]
    dsem.apply("api", limit=1)
    several = Worker(os.pathsep.join(map(str, files)))
    try:
        answer = several.from_resource("api", redis=url)
        assert answer.said == f"{dsem.namespace}/api", answer.text
    finally:
        several.close()


ALONE = """
import sys
from kubernetes import client
from distributed_semaphore import Semaphore, SemaphoreError
theirs = client.Configuration()
theirs.host, theirs.api_key = "https://elsewhere.test", {"authorization": "Bearer theirs"}
client.Configuration.set_default(theirs)
try:
    name = Semaphore.from_resource(sys.argv[1], sys.argv[2], redis=sys.argv[3], patience=10).name
except SemaphoreError as error:
    name = f"{type(error).__name__}: {error}"
assert client.Configuration.get_default_copy().host == "https://elsewhere.test"
print(name)
"""


def alone(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program that has a Kubernetes configuration of its own and uses a resource once."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("SEMAPHORE_", "POD_", "KUBE"))}
    command = [sys.executable, "-c", ALONE, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**outside, **environment}
    )


def test_the_programs_own_kubernetes_configuration_and_its_output_are_left_alone(
    dsem: Resources, cluster: ControlPlane, url: str
) -> None:
    dsem.apply("api", limit=1)
    ended = alone("api", dsem.namespace, url, KUBECONFIG=str(cluster.kubeconfig))
    assert (ended.stdout, ended.stderr) == (f"{dsem.namespace}/api\n", "")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(None, "there is no kubeconfig ({}), and this is no pod", id="none"),
        pytest.param("{", "", id="no YAML"),
        pytest.param("- 1", "", id="another document"),
        pytest.param("clusters: []", "", id="no context"),
    ],
)
def test_without_a_kubeconfig_that_can_be_used_an_error_says_so(
    url: str, tmp_path: Path, content: str | None, said: str
) -> None:
    file = tmp_path / "config"
    if content is not None:
        file.write_text(content)
    ended = alone("api", "payments", url, KUBECONFIG=str(file), HOME=str(tmp_path))
    assert ended.stderr == ""
    assert ended.stdout.startswith(f"ResourceUnreadable: no access to Kubernetes: {said.format(file)}")
    assert ended.stdout.endswith("set KUBECONFIG or run in a pod\n")


@pytest.fixture(scope="module")
def other() -> Iterator[RedisServer]:
    """A Redis that this cluster's operator does not use."""
    with RedisServer() as running:
        yield running


@pytest.fixture
def redis_pair(url: str, other: RedisServer) -> tuple[str, str]:
    """Addresses of the operator's Redis and of another."""
    return url, other.url


def test_a_redis_that_has_never_heard_of_the_resource_is_told_from_the_right_one(
    dsem: Resources, worker: Worker, other: RedisServer
) -> None:
    dsem.apply("api", limit=1)
    dsem.ready("api")
    answer = worker.from_resource("api", namespace=dsem.namespace, redis=other.url, patience=0.3)
    assert answer.said == "WrongRedis"
    assert f"Redis {other.url} does not serve DistributedSemaphore {dsem.namespace}/api" in answer.text
    assert "it has nothing of that name" in answer.text
    assert "Point SEMAPHORE_REDIS_URL at the Redis that this cluster's operator uses" in answer.text


@pytest.mark.parametrize(
    ("differs", "said"),
    [
        pytest.param(
            {"uid": "of-another-cluster"},
            "does not serve DistributedSemaphore {}: it has that name from another resource or cluster",
            id="of another cluster",
        ),
        pytest.param(
            {"generation": 1},
            "has generation 1 of DistributedSemaphore {}, Kubernetes has 2: the operator has not brought it over",
            id="behind",
        ),
    ],
)
def test_a_redis_that_has_the_same_name_of_another_cluster_or_time_is_told(
    dsem: Resources, worker: Worker, redis_pair: tuple[str, str], differs: dict[str, Any], said: str
) -> None:
    """The limit of another cluster, or of yesterday, must not be taken for the one that is in force."""
    dsem.apply("api", limit=1)
    dsem("scale", "dsem", "api", "--replicas=2")
    eventually(lambda: dsem.status("api").get("observedGeneration") == 2)
    key = Keys.of(f"{dsem.namespace}/api").config
    right, wrong = redis_pair
    with redis_py.Redis.from_url(right) as ours, redis_py.Redis.from_url(wrong) as theirs:
        theirs.hset(key, mapping=ours.hgetall(key))
        theirs.hset(key, mapping=differs)
    answer = worker.from_resource("api", namespace=dsem.namespace, redis=wrong, patience=0.3)
    assert answer.said == "WrongRedis"
    assert said.format(f"{dsem.namespace}/api") in answer.text


async def written(url: str, key: str, config: dict[bytes, bytes]) -> None:
    async with connect(url, 5) as connection:
        await connection.hset(key, mapping=config)


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_a_worker_finds_its_semaphore_through_sentinel_and_in_a_cluster(
    dsem: Resources, worker: Worker, url: str, tmp_path: Path, kind: str
) -> None:
    """The address is the one that the semaphore will use, whatever its form."""
    dsem.apply("api", limit=1)
    dsem.ready("api")
    key = Keys.of(f"{dsem.namespace}/api").config
    binary = RedisServer().binary
    with watched(binary, tmp_path) if kind == "sentinel" else redis_cluster(binary) as there:
        answer = worker.from_resource("api", namespace=dsem.namespace, redis=there.url, patience=0)
        assert answer.said == "WrongRedis"
        assert f"Redis {there.url} does not serve DistributedSemaphore {dsem.namespace}/api" in answer.text
        with redis_py.Redis.from_url(url) as ours:
            config = ours.hgetall(key)
        asyncio.run(written(there.url, key, config))
        answer = worker.from_resource("api", namespace=dsem.namespace, redis=there.url)
        assert (answer.said, answer.text[:16]) == (f"{dsem.namespace}/api", "held with fence ")


def test_a_redis_that_does_not_answer_or_refuses_is_told_without_the_password(
    dsem: Resources, worker: Worker, server: RedisServer, url: str
) -> None:
    dsem.apply("api", limit=1)
    gone = f"redis://:{PASSWORD}@127.0.0.1:1/0"
    answer = worker.from_resource("api", namespace=dsem.namespace, redis=gone, patience=0.3)
    assert (answer.said, answer.text.partition(" cannot be used")[0]) == ("Unavailable", "Redis redis://127.0.0.1:1/0")
    assert answer.seconds < 10
    wrong = url.replace(PASSWORD, f"not-{PASSWORD}")
    answer = worker.from_resource("api", namespace=dsem.namespace, redis=wrong, patience=0.3)
    assert answer.said == "Unavailable"
    assert "invalid" in answer.text


def test_a_semaphore_that_is_not_configured_names_itself_and_the_redis(dsem: Resources, url: str, shown: str) -> None:
    """By its name alone, where nothing of Kubernetes is asked."""
    program = f"""
import asyncio
from distributed_semaphore import AsyncSemaphore
asyncio.run(AsyncSemaphore({f"{dsem.namespace}/none"!r}, redis={url!r}).acquire())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20, check=False)
    said = ended.stderr.splitlines()[-1]
    assert said.startswith(
        f"distributed_semaphore._errors.NotConfigured: {dsem.namespace}/none is not configured in Redis {shown}: "
    )
    assert "kubectl get dsem --all-namespaces" in said
    assert PASSWORD not in said
