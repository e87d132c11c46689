"""Charts beside each other: in a downstream's own chart, and two operators in one cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.cluster.releases import CRD, DOWNSTREAM, OPERATOR

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.conftest import Kubectl
    from tests.cluster.releases import Helm, Installed


def test_a_downstreams_own_chart_takes_its_semaphores_as_a_dependency(
    helm: Helm, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    here = f"--namespace={namespace}"
    kubectl("apply", "--server-side", "--force-conflicts", f"--filename={OPERATOR / 'files' / f'{CRD}.yaml'}")
    kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=20s")
    own = tmp_path / "payments"
    (own / "templates").mkdir(parents=True)
    version = yaml.safe_load((DOWNSTREAM / "Chart.yaml").read_text())["version"]
    semaphores = {"name": DOWNSTREAM.name, "version": version, "repository": f"file://{DOWNSTREAM}"}
    chart = {"apiVersion": "v2", "name": "payments", "version": "1.0.0", "dependencies": [semaphores]}
    (own / "Chart.yaml").write_text(yaml.safe_dump(chart))
    values: dict[str, Any] = {DOWNSTREAM.name: {"semaphores": {"api": {"limit": 5}}, "defaults": {"lease": "10s"}}}
    (own / "values.yaml").write_text(yaml.safe_dump(values | {"global": {"region": "eu"}}))
    template = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "payments"}}
    (own / "templates" / "own.yaml").write_text(yaml.safe_dump(template))

    helm("dependency", "build", own)
    helm("install", "payments", own, here)
    made = json.loads(kubectl("get", "dsem/api", here, "--output=json"))
    assert (made["spec"]["limit"], made["spec"]["lease"]) == (5, "10s")
    assert made["metadata"]["labels"]["app.kubernetes.io/instance"] == "payments"
    with pytest.raises(AssertionError, match=r"distributed-semaphore:\n- at '/semaphores/api': .*'limits' not allowed"):
        helm("upgrade", "payments", own, here, values={DOWNSTREAM.name: {"semaphores": {"api": {"limits": 6}}}})
    helm("uninstall", "payments", here)


def test_two_operators_share_a_cluster_when_each_has_its_namespaces(
    installed: Installed, helm: Helm, kubectl: Kubectl, namespace: str
) -> None:
    """Under one release name, too; the definition belongs to one of them."""
    second = f"{namespace}-too"
    kubectl("create", "namespace", second)
    try:
        installed.install({"redis": {"url": "redis://r"}, "namespaces": [namespace]})
        values = {"redis": {"url": "redis://r"}, "namespaces": [second]}
        with pytest.raises(AssertionError, match=rf"{CRD}\" .* exists and cannot be imported"):
            helm("install", "operator", OPERATOR, f"--namespace={second}", values=values)
        helm("install", "operator", OPERATOR, f"--namespace={second}", "--set=crds.enabled=false", values=values)
        helm("uninstall", "operator", f"--namespace={second}")
        # The definition outlives its release, and another may take it over.
        helm("uninstall", "operator", f"--namespace={namespace}")
        helm("install", "other", OPERATOR, f"--namespace={second}", "--take-ownership", values=values)
        helm("uninstall", "other", f"--namespace={second}")
        assert CRD in kubectl("get", "crd", "--output=name")
    finally:
        kubectl("delete", "namespace", second, "--wait=false")
