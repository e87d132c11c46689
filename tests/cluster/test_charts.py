"""The charts, as a platform engineer and a downstream's team use them: real helm, real API server, real operator."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.cluster.releases import CRD, DOWNSTREAM, OPERATOR, RIGHTS, ROOT, eventually, make_helm

import redis
from chart_docs import current, documented
from distributed_semaphore.testing import RedisServer

if TYPE_CHECKING:
    from tests.cluster.conftest import Kubectl
    from tests.cluster.releases import Helm, Installed

EXAMPLES = sorted((ROOT / "examples" / "downstreams").glob("*.yaml"))
REDIS = ("--set", "redis.url=redis://redis:6379/0")


@pytest.fixture(scope="module")
def plain_helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """A helm that knows no cluster and keeps what it keeps in a folder of the test's own."""
    return make_helm(tmp_path_factory.mktemp("helm"), Path(os.devnull))


def test_charts_pass_strict_lint(plain_helm: Helm) -> None:
    assert "0 chart(s) failed" in plain_helm("lint", "--strict", OPERATOR, DOWNSTREAM)
    for example in EXAMPLES:
        assert "0 chart(s) failed" in plain_helm("lint", "--strict", DOWNSTREAM, f"--values={example}")


def test_what_the_charts_repeat_is_up_to_date() -> None:
    """The CRD of the operator's chart, and the tables of values in both READMEs."""
    repeated = dict(current())
    assert OPERATOR / "files" / f"{CRD}.yaml" in repeated
    for path, text in repeated.items():
        assert path.read_text() == text, f"{path.name} is stale: run make charts"


def test_specs_in_values_have_the_fields_and_bounds_of_the_crd() -> None:
    crd = yaml.safe_load((ROOT / "crds" / f"{CRD}.yaml").read_text())
    expected = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    schema = json.loads((DOWNSTREAM / "values.schema.json").read_text())["$defs"]
    allowed = schema["spec"]["properties"]
    assert allowed.keys() == expected.keys()
    assert allowed["alerts"]["properties"].keys() == expected["alerts"]["properties"].keys()
    for name, field in expected.items():
        for bound in ("minimum", "maximum", "enum"):
            assert allowed[name].get(bound) == field.get(bound), (name, bound)
    for pattern, field in ((schema["duration"]["pattern"], "lease"), (allowed["name"]["pattern"], "name")):
        assert f"self.matches('{pattern}')" in expected[field]["x-kubernetes-validations"][0]["rule"]


@pytest.mark.parametrize("chart", [OPERATOR, DOWNSTREAM], ids=lambda chart: chart.name)
def test_every_value_is_documented_and_in_the_schema(chart: Path) -> None:
    text = (chart / "values.yaml").read_text()
    schema = json.loads((chart / "values.schema.json").read_text())
    paths = {value.path for value in documented(text)}

    def of(field: dict[str, Any]) -> dict[str, Any]:
        return schema["$defs"][field["$ref"].rpartition("/")[2]] if "$ref" in field else field

    def check(values: dict[str, Any], properties: dict[str, Any], prefix: str = "") -> None:
        assert values.keys() == properties.keys() - {"global"}
        for key, value in values.items():
            if f"{prefix}{key}" not in paths:
                assert isinstance(value, dict), f"{prefix}{key} has no `# --` above it"
                check(value, of(properties[key])["properties"], f"{prefix}{key}.")

    check(yaml.safe_load(text), schema["properties"])


REDIS_URL, ON = {"redis": {"url": "redis://r"}}, {"enabled": True}
WRONG: list[tuple[Path, Any, str]] = [
    (OPERATOR, {}, "Set redis.url .* or redis.existingSecret"),
    (OPERATOR, {"redis": {"url": "redis://r", "existingSecret": "s"}}, "set one of redis.url, redis.existingSecret"),
    (OPERATOR, {"redis": {"url": "redis://r"}, "valkey": {"enabled": True}}, "set one of redis.url, .* valkey.enabled"),
    (OPERATOR, {"redis": {"url": "redis+sentinels://r/s"}}, "'/redis/url': .*does not match pattern"),
    (OPERATOR, {"redis": {"tls": True}}, "'/redis': .*'tls' not allowed"),
    (OPERATOR, {"networkPolicy": {"from": "prometheus"}}, "'/networkPolicy/from': got string, want array"),
    (OPERATOR, {"monitoring": {"serviceMonitor": {"interval": "often"}}}, "'/monitoring/serviceMonitor/interval': "),
    (OPERATOR, {"monitoring": {"rules": {"alerts": {"QueueStuck": {}}}}}, "invalid propertyName 'QueueStuck'"),
    (OPERATOR, {"monitoring": {"rules": {"alerts": {"SemaphoreLongWait": {"after": "5m"}}}}}, "'after' not allowed"),
    (OPERATOR, REDIS_URL | {"monitoring": {"podMonitor": ON, "serviceMonitor": ON}}, "podMonitor, not both"),
    (OPERATOR, REDIS_URL | {"monitoring": {"serviceMonitor": ON}, "service": {"enabled": False}}, "service.enabled to"),
    (OPERATOR, {"redis": {"uri": "redis://r:6379"}}, "'/redis': .*'uri' not allowed"),
    (OPERATOR, {"redis": {"url": "http://r:6379"}}, "'/redis/url': .*does not match pattern"),
    (OPERATOR, {"replicas": 99}, "'/replicas': maximum: got 99, want 9"),
    (OPERATOR, {"namespaces": "payments"}, "'/namespaces': got string, want array"),
    (OPERATOR, {"namespaces": ["Payments"]}, "'/namespaces/0': .*does not match pattern"),
    (OPERATOR, {"crds": {"keep": "yes"}}, "'/crds/keep': got string, want boolean"),
    (OPERATOR, {"image": {"tag": 1.5}}, "'/image/tag': got number, want string"),
    (OPERATOR, {"operator": {"sweepSeconds": 0}}, "'/operator/sweepSeconds': minimum: got 0, want 0.1"),
    (OPERATOR, {"leaderElection": True}, "'': additional properties 'leaderElection' not allowed"),
    (OPERATOR, {"redis": {"url": "redis://r"}, "serviceAccount": {"create": False}}, "serviceAccount.name: which"),
    (DOWNSTREAM, {"semaphores": [{"name": "a", "limit": 5}]}, "'/semaphores': got array, want object"),
    (DOWNSTREAM, {"semaphores": {"a": {"limits": 5}}}, "'/semaphores/a': additional properties 'limits' not allowed"),
    (DOWNSTREAM, {"semaphores": {"a": {"limit": "five"}}}, "'/semaphores/a/limit': got string, want integer"),
    (DOWNSTREAM, {"semaphores": {"a": {"limit": -1}}}, "'/semaphores/a/limit': minimum: got -1, want 0"),
    (DOWNSTREAM, {"semaphores": {"a": {"lease": "30s"}}}, "semaphores.a.limit: how many slots"),
    (DOWNSTREAM, {"semaphores": {"a": {"limit": 5, "lease": 30}}}, "'/semaphores/a/lease': got number, want string"),
    (DOWNSTREAM, {"semaphores": {"a": {"limit": 5, "maxWait": "5 minutes"}}}, "'/semaphores/a/maxWait': .*pattern"),
    (DOWNSTREAM, {"semaphores": {"a": {"limit": 5, "state": "on"}}}, "'/semaphores/a/state': .*'Active', 'Paused'"),
    (DOWNSTREAM, {"semaphores": {"a": {"limit": 5, "alerts": {"stuck": "1m"}}}}, "'/semaphores/a/alerts': .*'stuck'"),
    (DOWNSTREAM, {"semaphores": {"Licensed_API": {"limit": 5}}}, "invalid propertyName 'Licensed_API'"),
    (DOWNSTREAM, {"defaults": {"name": "all-the-same"}}, "'/defaults/name': false schema"),
    (DOWNSTREAM, {"clients": {"serviceAccounts": ["worker"]}}, "'/clients/serviceAccounts/0': got string, want object"),
]  # fmt: skip


@pytest.mark.parametrize(("chart", "values", "message"), WRONG, ids=[json.dumps(values) for _, values, _ in WRONG])
def test_wrong_values_are_refused_by_name(plain_helm: Helm, chart: Path, values: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        plain_helm("template", "x", chart, values=values)


def test_a_semaphores_own_fields_win_over_the_defaults(plain_helm: Helm) -> None:
    values = {
        "defaults": {"limit": 5, "lease": "10s", "alerts": {"queueStuckAfter": "1m", "longWaitAfter": "2m"}},
        "semaphores": {
            "nobody": {"limit": 0, "alerts": {"longWaitAfter": "3m"}},
            "many": {"limit": 100_000},
            "plain": {},
        },
    }
    made = yaml.safe_load_all(plain_helm("template", "x", DOWNSTREAM, values=values))
    specs = {resource["metadata"]["name"]: resource["spec"] for resource in made}
    alerts = {"queueStuckAfter": "1m", "longWaitAfter": "2m"}
    assert specs == {
        "nobody": {"limit": 0, "lease": "10s", "alerts": alerts | {"longWaitAfter": "3m"}},
        "many": {"limit": 100_000, "lease": "10s", "alerts": alerts},
        "plain": {"limit": 5, "lease": "10s", "alerts": alerts},
    }


def test_the_pod_meets_the_restricted_standard_and_holds_no_secret_in_its_environment(plain_helm: Helm) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted."""
    url = "redis://user:hunter2@redis:6379/0"
    made = list(yaml.safe_load_all(plain_helm("template", "x", OPERATOR, "--set", f"redis.url={url}")))
    [pod] = [each["spec"]["template"]["spec"] for each in made if each["kind"] == "Deployment"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "env" not in container
    assert "hunter2" not in json.dumps([each for each in made if each["kind"] != "Secret"])
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_what_the_charts_make_is_accepted_by_the_api_server(helm: Helm, kubectl: Kubectl, namespace: str) -> None:
    kubectl("apply", "--server-side", f"--filename={ROOT / 'crds'}")
    kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=20s")
    everything = {
        "redis": {"existingSecret": "redis", "existingSecretKey": "address", "caSecret": "redis-ca"},
        "networkPolicy": {
            "enabled": True,
            "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
            "egress": [{"ports": [{"port": 6379}]}],
        },
        "monitoring": {"dashboard": {"enabled": True}},
        "namespaces": [namespace],
        "image": {"digest": f"sha256:{'0' * 64}"},
        "imagePullSecrets": [{"name": "registry"}],
        "serviceAccount": {"annotations": {"a": "b"}},
        "service": {"annotations": {"prometheus.io/scrape": "true"}},
        "podLabels": {"team": "platform"},
        "podAnnotations": {"a": "b"},
        "priorityClassName": "system-cluster-critical",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "fullnameOverride": "semaphores",
    }
    here = f"--namespace={namespace}"
    rendered = [
        helm("template", "operator", OPERATOR, here, *REDIS),
        helm("template", "operator", OPERATOR, here, values=everything),
        helm("template", "operator", OPERATOR, here, values={"valkey": {"enabled": True}}),
        *(helm("template", "downstream", DOWNSTREAM, here, f"--values={example}") for example in EXAMPLES),
        (ROOT / "examples" / "worker" / "deployment.yaml").read_text(),
    ]
    for manifests in rendered:
        accepted = kubectl(
            "apply", "--server-side", "--dry-run=server", "--force-conflicts", "--filename=-", stdin=manifests
        )
        made = [each for each in yaml.safe_load_all(manifests) if each]
        assert accepted.count("(server dry run)") == len(made)
        for each in made:
            pod = each["spec"].get("template", each)["spec"] if each["kind"] in {"Deployment", "Pod"} else {}
            for container in pod.get("containers", ()):
                names = [variable["name"] for variable in container.get("env", ())]
                assert len(names) == len(set(names)), f"{each['kind']} {each['metadata']['name']}: {names}"


def test_an_upgrade_brings_new_fields_of_the_resource_and_keeps_semaphores(
    installed: Installed, helm: Helm, kubectl: Kubectl, namespace: str, tmp_path: Path
) -> None:
    """helm leaves alone what is in a chart's crds/; a template it brings up to date."""
    here = f"--namespace={namespace}"
    before = tmp_path / "before"
    shutil.copytree(OPERATOR, before)
    file = before / "files" / f"{CRD}.yaml"
    crd = yaml.safe_load(file.read_text())
    del crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["maxHold"]
    file.write_text(yaml.safe_dump(crd))
    helm("install", "operator", before, here, *REDIS)
    kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=20s")
    helm("install", "api", DOWNSTREAM, here, "--set=semaphores.api.limit=5")
    limited = ("upgrade", "api", DOWNSTREAM, here, "--set=semaphores.api.limit=5,semaphores.api.maxHold=1h")
    with pytest.raises(AssertionError, match="maxHold"):
        helm(*limited)
    uid = kubectl("get", "dsem", "api", here, "--output=jsonpath={.metadata.uid}")
    helm("upgrade", "operator", OPERATOR, here, *REDIS)
    eventually(lambda: "maxHold" in kubectl("get", "crd", CRD, "--output=json"))
    helm(*limited)
    kept = kubectl("get", "dsem", "api", here, "--output=jsonpath={.metadata.uid} {.spec.maxHold}")
    assert kept == f"{uid} 1h"


def test_life_of_both_charts(installed: Installed, helm: Helm, kubectl: Kubectl, namespace: str) -> None:
    here = f"--namespace={namespace}"
    worker = f"--as=system:serviceaccount:{namespace}:payments-worker"
    upgrade = ("upgrade", "licensed-api", DOWNSTREAM, here, "--reuse-values")

    def limit() -> str:
        return kubectl("get", "dsem", "licensed-api", here, "--output=jsonpath={.spec.limit}")

    with RedisServer() as server, redis.Redis.from_url(server.url, decode_responses=True) as store:
        values = {"redis": {"url": server.url}, "operator": {"sweepSeconds": 0.2}}
        assert "serves all namespaces" in installed.install(values)
        assert installed.rights() == RIGHTS
        example = ROOT / "examples" / "downstreams" / "licensed-api.yaml"
        notes = helm("install", "licensed-api", DOWNSTREAM, here, f"--values={example}")
        assert f'AsyncSemaphore("{namespace}/licensed-api")' in notes
        assert limit() == "5"
        config = f"sem:{{{namespace}/licensed-api}}:config"
        with installed.operating():
            kubectl("wait", "--for=condition=Ready", "dsem/licensed-api", here, "--timeout=20s")
            assert store.hget(config, "limit") == "5"

            # helm, kubectl, helm: each change reaches Redis.
            helm(*upgrade, "--set=semaphores.licensed-api.limit=7")
            eventually(lambda: store.hget(config, "limit") == "7")
            kubectl("scale", "dsem", "licensed-api", here, "--replicas=8")
            eventually(lambda: store.hget(config, "limit") == "8")
            with pytest.raises(AssertionError, match=r'conflict with "kubectl" .*: \.spec\.limit'):
                helm(*upgrade, "--set=semaphores.licensed-api.limit=9")
            helm(*upgrade, "--set=semaphores.licensed-api.limit=9", "--force-conflicts")
            eventually(lambda: store.hget(config, "limit") == "9")

            # A lost configuration is what the operator writes an Event of.
            store.delete(config)
            eventually(lambda: "ConfigRestored" in kubectl("get", "events.events.k8s.io", here))

            assert kubectl("auth", "can-i", "get", "dsem/licensed-api", here, worker).strip() == "yes"
            with pytest.raises(AssertionError, match="ended with 1"):
                kubectl("auth", "can-i", "patch", "dsem/licensed-api", here, worker)

        helm("uninstall", "operator", here)
        left = kubectl("get", "deployment,secret,service,sa", here, "--selector=app.kubernetes.io/instance=operator")
        assert left == ""
        assert limit() == "9", "the operator's chart leaves the semaphores"
        installed.install(values)  # it finds its CRD again; the account is a new one
        with installed.operating():
            helm("uninstall", "licensed-api", here)
            kubectl("wait", "--for=delete", "dsem/licensed-api", here, "--timeout=20s")
            helm("install", "left", DOWNSTREAM, here, "--set=semaphores.left.limit=1")
            kubectl("wait", "--for=condition=Ready", "dsem/left", here, "--timeout=20s")

        # The operator goes first, so nobody takes the finalizer off; the README has a line for that.
        helm("uninstall", "operator", here)
        kubectl("delete", "dsem", "left", here, "--wait=false")
        readme = (OPERATOR / "README.md").read_text()
        [line] = re.findall(r"^    (kubectl get dsem -A .*\n.*; done)$", readme, re.MULTILINE)
        programs = f"{Path(installed.cluster.kubectl).parent}:{os.environ['PATH']}"
        environment = {
            "PATH": programs,
            "KUBECONFIG": str(installed.cluster.kubeconfig),
            "HOME": str(installed.log.parent),
        }
        subprocess.run(["bash", "-c", line], env=environment, check=True, timeout=60, stdout=subprocess.DEVNULL)
        kubectl("wait", "--for=delete", "dsem/left", here, "--timeout=20s")
