"""Charts installed by real helm, for the tests of charts and image."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tests.cluster.operator_process import COMPILED

from controlplane import binary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.cluster.conftest import Kubectl

    from controlplane import ControlPlane

ROOT = Path(__file__).parents[2]
OPERATOR = ROOT / "charts" / "semaphore-operator"
DOWNSTREAM = ROOT / "charts" / "distributed-semaphore"
CRD = "distributedsemaphores.semaphores.dev"
NAME = "operator-semaphore-operator"
RIGHTS = {
    (CRD, "list watch patch"),
    ("distributedsemaphores.semaphores.dev/status", "patch"),
    ("events.events.k8s.io", "create"),
    ("pods", "list watch"),
    ("leases.coordination.k8s.io", "create"),
    ("leases.coordination.k8s.io", "get patch"),
}
"""What the operator's account may do, beside what any account may: resource and verbs."""


def eventually(condition: Callable[[], bool], timeout: float = 15.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s"
        time.sleep(0.05)


class Helm(Protocol):
    def __call__(self, *arguments: str | Path, values: Any = None) -> str:
        """Return its standard output; an AssertionError carries what it wrote to standard error."""


def make_helm(home: Path, kubeconfig: Path) -> Helm:
    kept = {f"HELM_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(kubeconfig)} | kept

    def run(*arguments: str | Path, values: Any = None) -> str:
        given = () if values is None else ("--values=-",)
        answer = subprocess.run(
            [binary("helm"), *arguments, *given],
            input=None if values is None else json.dumps(values),
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if answer.returncode != 0:
            raise AssertionError(f"helm {arguments[0]} ended with {answer.returncode}: {answer.stderr}{answer.stdout}")
        return answer.stdout

    return run


def remove_semaphores(kubectl: Kubectl) -> None:
    """Remove every semaphore, whether or not an operator is there to take the finalizers off."""
    found = json.loads(kubectl("get", "dsem", "--all-namespaces", "--output=json"))["items"]
    for metadata in (resource["metadata"] for resource in found):
        here = f"--namespace={metadata['namespace']}"
        with contextlib.suppress(
            AssertionError
        ):  # it went with its namespace meanwhile; if not, the next command says so
            kubectl("patch", "dsem", metadata["name"], here, "--type=merge", '--patch={"metadata":{"finalizers":null}}')
    if found:
        kubectl("delete", "dsem", "--all", "--all-namespaces", "--timeout=30s")


def forget_semaphores(kubectl: Kubectl) -> None:
    """Remove every semaphore, and the CRD."""
    if kubectl("get", "crd", CRD, "--ignore-not-found"):
        remove_semaphores(kubectl)
        kubectl("delete", "crd", CRD, "--timeout=30s")


class Installed:
    """A release of the operator's chart, and its operator as the Deployment would run it."""

    def __init__(self, helm: Helm, kubectl: Kubectl, cluster: ControlPlane, namespace: str, folder: Path) -> None:
        self.helm, self.kubectl, self.cluster = helm, kubectl, cluster
        self.namespace = f"--namespace={namespace}"
        self.account = Path()
        self.log = folder / "operator.log"
        self.address = folder / "url"
        """File with the address of Redis, as the pod has it of the Secret."""
        self._account_of = namespace
        self.arguments: list[str] = []

    def install(self, values: Any) -> str:
        """Install it; return the notes."""
        notes = self.helm("install", "operator", OPERATOR, self.namespace, values=values)
        deployment = json.loads(self.kubectl("get", "deployment", NAME, self.namespace, "--output=json"))
        assert deployment["spec"]["replicas"] == 2
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        self.arguments = container["args"]
        # The address of Redis goes from the values through the Secret into the file that the operator reads.
        secret = json.loads(self.kubectl("get", "secret", f"{NAME}-redis", self.namespace, "--output=json"))
        self.address.write_bytes(base64.b64decode(secret["data"]["url"]))
        assert f"--redis-file=/etc/semaphore-operator/redis/{next(iter(secret['data']))}" in self.arguments
        self.account = self.cluster.service_account_kubeconfig(self._account_of, NAME)
        self.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=20s")
        return notes

    def rights(self) -> set[tuple[str, str]]:
        """What its account may do beyond what any account may."""

        def listed(kubeconfig: Path) -> set[tuple[str, str]]:
            lines = self.kubectl("auth", "can-i", "--list", "--no-headers", self.namespace, kubeconfig=kubeconfig)
            table = [re.split(r"\s{2,}", line) for line in lines.splitlines()]
            return {(row[0], row[-1].strip("[]")) for row in table}

        return listed(self.account) - listed(self.cluster.service_account_kubeconfig(self._account_of, "default"))

    @contextlib.contextmanager
    def operating(self) -> Iterator[None]:
        """Run the operator: the Deployment's arguments and account; only paths and the port are this machine's."""
        own = (f"--redis-file={self.address}", "--host=127.0.0.1", "--port=0")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SEMAPHORE_")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with self.log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "semaphore_operator", *self.arguments, *own],
                env=environment | {"KUBECONFIG": str(self.account), "PYTHONPYCACHEPREFIX": str(COMPILED)},
                stderr=output,
            )
            try:
                yield
                assert process.poll() is None, "the operator has ended"
            except AssertionError as error:
                error.add_note(f"The operator's log:\n{self.log.read_text()}")
                raise
            finally:
                process.terminate()
                process.wait(10)
