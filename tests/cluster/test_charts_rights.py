"""Who may do what once the chart is installed: no right is missing, and none is left over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tests.cluster.releases import NAME, RIGHTS, eventually

import redis
from distributed_semaphore.testing import RedisServer

if TYPE_CHECKING:
    from tests.cluster.conftest import Kubectl
    from tests.cluster.releases import Installed

RESOURCE = {
    "apiVersion": "semaphores.dev/v1alpha1",
    "kind": "DistributedSemaphore",
    "metadata": {"name": "licensed-api"},
    "spec": {"limit": 5},
}
EACH_RIGHT = sorted((resource, verb) for resource, verbs in RIGHTS for verb in verbs.split())


@pytest.fixture
def second(kubectl: Kubectl, namespace: str):
    """Another namespace, beside the test's own."""
    name = f"{namespace}-too"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


def test_a_role_in_each_of_two_namespaces_is_enough(
    installed: Installed, kubectl: Kubectl, namespace: str, second: str
) -> None:
    with RedisServer() as server, redis.Redis.from_url(server.url, decode_responses=True) as store:
        values = {"redis": {"url": server.url}, "operator": {"sweepSeconds": 0.2}, "namespaces": [namespace, second]}
        assert f"serves the namespaces {namespace}, {second}" in installed.install(values)
        assert installed.rights() == RIGHTS
        with pytest.raises(AssertionError, match="ended with 1"):
            kubectl("auth", "can-i", "list", "dsem", "--namespace=default", kubeconfig=installed.account)
        for each in (namespace, second):
            kubectl("apply", f"--namespace={each}", "--filename=-", stdin=json.dumps(RESOURCE))
        with installed.operating():
            for each in (namespace, second):
                kubectl("wait", "--for=condition=Ready", "dsem/licensed-api", f"--namespace={each}", "--timeout=20s")
            log = installed.log.read_text()
            assert not [line for line in log.splitlines() if " WARNING " in line or " ERROR " in line], log
            for here, name in ((f"--namespace={each}", each) for each in (namespace, second)):
                # By watching, not by the listing once a minute.
                kubectl("scale", "dsem", "licensed-api", here, "--replicas=8")
                config = f"sem:{{{name}/licensed-api}}:config"
                eventually(lambda config=config: store.hget(config, "limit") == "8")
                kubectl("delete", "dsem", "licensed-api", here, "--timeout=20s")
        assert "orbidden" not in installed.log.read_text()


@pytest.mark.parametrize(("resource", "verb"), EACH_RIGHT, ids=[f"{verb}-{resource}" for resource, verb in EACH_RIGHT])
def test_without_any_of_its_rights_the_operator_says_which_it_misses(
    installed: Installed, kubectl: Kubectl, namespace: str, resource: str, verb: str
) -> None:
    """So none of them is left over: one that nothing uses would be missed by nobody."""
    here = f"--namespace={namespace}"
    with RedisServer() as server, redis.Redis.from_url(server.url) as store:
        installed.install({"redis": {"url": server.url}, "operator": {"sweepSeconds": 0.2, "patchSeconds": 0.2}})
        kind = ("role", f"{NAME}-leader") if resource.startswith("leases") else ("clusterrole", NAME)
        role = json.loads(kubectl("get", *kind, here, "--output=json"))
        name, slash, part = resource.partition("/")
        plural, _, group = name.partition(".")
        plural += slash + part
        [rule] = [each for each in role["rules"] if each["resources"] == [plural] and verb in each["verbs"]]
        rule["verbs"].remove(verb)
        role["rules"] = [each for each in role["rules"] if each["verbs"]]
        kubectl("replace", "--filename=-", stdin=json.dumps(role))
        kubectl("apply", here, "--filename=-", stdin=json.dumps(RESOURCE))
        missed = f'cannot {verb} resource "{plural}" in API group "{group}"'

        def said() -> bool:
            # A configuration that is lost again and again is what Events are written of.
            for key in store.keys("sem:*:config"):
                store.delete(key)
            return missed in installed.log.read_text().replace("\\", "")

        with installed.operating():
            eventually(said, 30)


def test_the_clusters_roles_view_and_edit_know_semaphores(
    installed: Installed, kubectl: Kubectl, namespace: str
) -> None:
    here = f"--namespace={namespace}"
    installed.install({"redis": {"url": "redis://redis"}})
    for role in ("view", "edit", "admin"):
        kubectl("create", "rolebinding", role, here, f"--clusterrole={role}", f"--user={role}er")

    def may(role: str, verb: str, part: str = "") -> bool:
        try:
            asked = kubectl("auth", "can-i", verb, "dsem", f"--subresource={part}", here, f"--as={role}er")
            return asked.strip() == "yes"
        except AssertionError:
            return False

    eventually(lambda: may("view", "get") and may("edit", "patch") and may("admin", "delete"), 20)
    assert may("view", "watch")
    assert may("edit", "patch", "scale")
    assert not may("view", "patch")
    assert not may("edit", "patch", "status"), "the status is the operator's"
