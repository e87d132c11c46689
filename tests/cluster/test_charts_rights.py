"""Who may do what once the chart is installed: no right is missing, and none is left over."""

from __future__ import annotations

import json
import re
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
MISSED = re.compile(r'cannot (\w+) resource "([^"]+)" in API group "([^"]*)"')


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


def test_with_no_right_at_all_the_operator_asks_for_each_that_it_has_and_for_no_other(
    installed: Installed, kubectl: Kubectl, namespace: str
) -> None:
    """So none is left over, and its log names the one that is missing, whichever it is."""
    here = f"--namespace={namespace}"
    with RedisServer() as server, redis.Redis.from_url(server.url) as store:
        installed.install({"redis": {"url": server.url}, "operator": {"sweepSeconds": 0.2, "patchSeconds": 0.2}})
        kubectl("apply", here, "--filename=-", stdin=json.dumps(RESOURCE))
        granted = Granted(kubectl, here)
        granted.grant()
        needed = {
            (verb, kind.partition(".")[0] + slash + part, kind.partition(".")[2])
            for resource, verbs in RIGHTS
            for kind, slash, part in [resource.partition("/")]
            for verb in verbs.split()
        }

        def works() -> bool:
            said = installed.log.read_text().replace("\\", "")
            if wanted := set(MISSED.findall(said)) - granted.rights:
                granted.grant(*wanted)
            # A configuration that is lost again and again is what Events are written of.
            for key in store.keys("sem:*:config"):
                store.delete(key)
            found = kubectl("get", "dsem,events.events.k8s.io", here, "--output=json")
            if not needed <= granted.rights:  # the Lease is renewed every other second
                return False
            return '"status": "True"' in found and '"ConfigRestored"' in found

        with installed.operating():
            eventually(works, 60)
        assert granted.rights == needed


class Granted:
    """The roles of the operator's account, which have no rule but for what was granted here."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.rights: set[tuple[str, str, str]] = set()
        """Verb, resource and API group of each."""
        self._kubectl = kubectl
        self._namespace = namespace

    def grant(self, *rights: tuple[str, str, str]) -> None:
        self.rights.update(rights)
        for kind, name in (("role", f"{NAME}-leader"), ("clusterrole", NAME)):
            role = json.loads(self._kubectl("get", kind, name, self._namespace, "--output=json"))
            role["rules"] = [
                {"apiGroups": [group], "resources": [resource], "verbs": [verb]}
                | ({"resourceNames": [NAME]} if kind == "role" and verb != "create" else {})
                for verb, resource, group in sorted(self.rights)
                if (resource == "leases") == (kind == "role")
            ]
            self._kubectl("replace", "--filename=-", stdin=json.dumps(role))


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
