"""What schemas cannot see is said by helm or in the operator's log, with the value to change."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cluster.releases import DOWNSTREAM, NAME, OPERATOR, eventually, make_helm

from distributed_semaphore.testing import RedisServer

if TYPE_CHECKING:
    from tests.cluster.conftest import Kubectl
    from tests.cluster.releases import Helm, Installed


def test_an_old_kubernetes_is_refused(tmp_path: Path) -> None:
    helm = make_helm(tmp_path, Path(os.devnull))
    for chart, values in ((OPERATOR, {"redis": {"url": "redis://r"}}), (DOWNSTREAM, {})):
        with pytest.raises(AssertionError, match=r"kubeVersion: >=1\.29.* incompatible with Kubernetes v1\.28"):
            helm("template", "x", chart, "--kube-version=v1.28.9", values=values)


def test_a_missing_secret_is_named_by_the_notes(
    installed: Installed, helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    here = f"--namespace={namespace}"
    values = {"redis": {"existingSecret": "redis", "existingSecretKey": "address"}}
    notes = helm("install", "operator", OPERATOR, here, values=values)
    assert f"there is no Secret redis in namespace {namespace}. Make it, or correct redis.existingSecret." in notes
    kubectl("create", "secret", "generic", "redis", "--from-literal=url=redis://r", here)
    notes = helm("upgrade", "operator", OPERATOR, here, values=values)
    assert "The Secret redis has no key address. Add it, or correct redis.existingSecretKey." in notes
    notes = helm("upgrade", "operator", OPERATOR, here, "--reset-values", "--set=redis.existingSecret=redis")
    assert "correct redis" not in notes


def test_a_namespace_that_is_not_there_ends_the_installation(installed: Installed, helm: Helm, namespace: str) -> None:
    values = {"redis": {"url": "redis://r"}, "namespaces": ["nowhere"]}
    with pytest.raises(AssertionError, match='namespaces "nowhere" not found'):
        helm("install", "operator", OPERATOR, f"--namespace={namespace}", values=values)


def test_the_log_names_the_value_to_change_and_its_change_is_enough(
    installed: Installed, kubectl: Kubectl, namespace: str
) -> None:
    here = f"--namespace={namespace}"
    with RedisServer() as server:
        values = {"redis": {"url": server.url}, "namespaces": [namespace], "operator": {"sweepSeconds": 0.2}}
        installed.install(values)
        role = json.loads(kubectl("get", "role", NAME, here, "--output=json"))
        kubectl("delete", "role", NAME, here)
        kubectl("create", here, "--filename=-", stdin=json.dumps(SEMAPHORE))

        def says(*parts: str) -> None:
            lines = lambda: installed.log.read_text().splitlines()  # noqa: E731
            eventually(lambda: any(all(part in line for part in parts) for line in lines()), 30)

        with installed.operating():
            says(f"may not list distributedsemaphores in {namespace}", "rbac.create, namespaces")
            for field in ("resourceVersion", "uid", "creationTimestamp"):
                del role["metadata"][field]
            kubectl("create", "--filename=-", stdin=json.dumps(role))
            chart = "in the chart redis.url or redis.existingSecret and its existingSecretKey"
            for address, complaint in (
                (None, "the file with the address of Redis cannot be read"),
                ("http://redis:6379", "redis://host:6379/0, rediss://"),
                ("redis://127.0.0.1:1/0", "redis://127.0.0.1:1/0: Error 111"),
            ):
                installed.address.unlink() if address is None else installed.address.write_text(address)
                says("Redis cannot be used", complaint, chart)
            installed.address.write_text(server.url)
            kubectl("wait", "--for=condition=Ready", "dsem/api", here, "--timeout=30s")


SEMAPHORE = {
    "apiVersion": "semaphores.dev/v1alpha1",
    "kind": "DistributedSemaphore",
    "metadata": {"name": "api"},
    "spec": {"limit": 5},
}
