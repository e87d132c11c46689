"""A real API server for the tests of this folder, a kubectl that talks to it, and the operator as a process."""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from tests.cluster.operator_process import OperatorProcess
from tests.cluster.releases import Installed, forget_semaphores, make_helm, remove_semaphores

from controlplane import ControlPlane
from distributed_semaphore.testing import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cluster.releases import Helm

CRDS = Path(__file__).parents[2] / "crds"
CRD = "distributedsemaphores.semaphores.dev"


class Kubectl(Protocol):
    """Runs kubectl as a user would; an AssertionError carries what it wrote to standard error."""

    def __call__(self, *arguments: str, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        """Return its standard output; `kubeconfig` is another user's, without it the admin's."""


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    plane = ControlPlane()
    if capture:
        # The first start builds for minutes, and says so.
        with capture.global_and_fixture_disabled():
            plane.start()
    else:
        plane.start()
    yield plane
    plane.stop()


@pytest.fixture
def own_cluster(cluster: ControlPlane) -> ControlPlane:
    """The cluster, for tests that do to it what is only done to one of our own."""
    if cluster.existing:
        pytest.skip("not on an existing cluster (USE_EXISTING_CLUSTER)")
    return cluster


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace of the test's own."""
    name = f"test-{secrets.token_hex(4)}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")


@pytest.fixture(scope="session")
def kubectl(cluster: ControlPlane) -> Kubectl:
    return kubectl_of(cluster)


def kubectl_of(cluster: ControlPlane) -> Kubectl:
    """Give the kubectl of a cluster."""

    def run(*arguments: str, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        answer = subprocess.run(
            [cluster.kubectl, f"--kubeconfig={kubeconfig or cluster.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if answer.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(arguments)} ended with {answer.returncode}: {answer.stderr}")
        return answer.stdout

    return run


@pytest.fixture(scope="module")
def crd(cluster: ControlPlane, kubectl: Kubectl) -> None:
    """The CRD as a user installs it, without any resource that an earlier module has left."""
    kubectl("apply", "--server-side", "--force-conflicts", f"--filename={CRDS}")
    kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=20s")
    if not cluster.existing:
        remove_semaphores(kubectl)


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def helm(own_cluster: ControlPlane, kubectl: Kubectl, tmp_path: Path) -> Iterator[Helm]:
    """A helm on a cluster that has never heard of semaphores, and will not have afterwards."""
    forget_semaphores(kubectl)
    yield make_helm(tmp_path, own_cluster.kubeconfig)
    forget_semaphores(kubectl)


@pytest.fixture
def installed(
    helm: Helm, kubectl: Kubectl, cluster: ControlPlane, namespace: str, tmp_path: Path
) -> Iterator[Installed]:
    """For the chart of the operator in the test's own namespace; it goes with the test, cluster-wide roles and all."""
    yield Installed(helm, kubectl, cluster, namespace, tmp_path)
    helm("uninstall", "operator", f"--namespace={namespace}", "--ignore-not-found")


class StartOperator(Protocol):
    """Starts an operator that ends with the test."""

    def __call__(self, *arguments: str, kubeconfig: Path | None = None) -> OperatorProcess:
        """Start it with these options, as the admin or as another user."""


@pytest.fixture
def start_operator(cluster: ControlPlane, tmp_path: Path) -> Iterator[StartOperator]:
    started: list[OperatorProcess] = []

    def start(*arguments: str, kubeconfig: Path | None = None) -> OperatorProcess:
        log = tmp_path / f"operator-{len(started)}.log"
        process = OperatorProcess(kubeconfig or cluster.kubeconfig, log, *arguments)
        started.append(process)
        return process.start()

    yield start
    for process in started:
        assert process.stop() == 0, process.text
        assert "Traceback" not in process.text, process.text


class Resources:
    """The semaphores of one namespace, as a user of kubectl sees them."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.kubectl = kubectl
        self.namespace = namespace

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        return self.kubectl(*arguments, f"--namespace={self.namespace}", stdin=stdin)

    def apply(self, called: str, /, **spec: Any) -> None:
        manifest = {
            "apiVersion": "semaphores.dev/v1alpha1",
            "kind": "DistributedSemaphore",
            "metadata": {"name": called},
            "spec": spec,
        }
        self("apply", "--filename=-", stdin=json.dumps(manifest))

    def get(self, called: str) -> Any:
        return json.loads(self("get", "dsem", called, "--output=json"))

    def status(self, called: str) -> dict[str, Any]:
        return self.get(called).get("status", {})

    def conditions(self, called: str) -> dict[str, tuple[str, str]]:
        """Give status and reason of each condition."""
        said = self.status(called).get("conditions", [])
        return {condition["type"]: (condition["status"], condition["reason"]) for condition in said}

    def message(self, called: str, kind: str) -> str:
        return next(each["message"] for each in self.status(called)["conditions"] if each["type"] == kind)

    def ready(self, *called: str) -> None:
        self("wait", "--for=condition=Ready", *(f"dsem/{name}" for name in called), "--timeout=20s")

    def events(self, called: str) -> list[tuple[str, str, str]]:
        """Give type, reason and message of each Event on a semaphore."""
        listed = json.loads(self("get", "events.events.k8s.io", "--output=json"))["items"]
        return [(each["type"], each["reason"], each["note"]) for each in listed if each["regarding"]["name"] == called]


@pytest.fixture
def dsem(crd: None, kubectl: Kubectl, namespace: str) -> Resources:
    return Resources(kubectl, namespace)


def eventually(condition: Callable[[], bool], timeout: float = 20.0) -> float:
    """Wait for something that nothing announces; give the seconds it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < timeout, f"not within {timeout} s"
        time.sleep(0.05)
    return time.monotonic() - start
