"""The control plane that tests and demo run on: real, with RBAC and controllers, and gone when it is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from controlplane import ControlPlane, ControlPlaneError, StartError, binary

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Kubectl


def eventually(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout} s"
        time.sleep(0.02)


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_server_and_client_are_of_the_pinned_version(kubectl: Kubectl) -> None:
    versions = json.loads(kubectl("version", "--output=json"))
    for side in ("clientVersion", "serverVersion"):
        assert (versions[side]["major"], versions[side]["minor"]) == ("1", "37")
        assert versions[side]["gitVersion"].startswith("v1.37.")


def test_a_deleted_namespace_empties_and_goes(kubectl: Kubectl) -> None:
    kubectl("create", "namespace", "short-lived")
    kubectl("create", "configmap", "inside", "--namespace=short-lived")
    kubectl("delete", "namespace", "short-lived", "--timeout=30s")
    assert kubectl("get", "namespace", "short-lived", "--ignore-not-found") == ""


def test_owned_objects_follow_their_owner(kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "owner")
    uid = kubectl("get", "configmap", "owner", "--output=jsonpath={.metadata.uid}")
    owned = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "owned",
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}],
        },
    }
    kubectl("apply", "--filename=-", stdin=json.dumps(owned))
    kubectl("delete", "configmap", "owner")
    kubectl("wait", "--for=delete", "configmap/owned", "--timeout=30s")


def test_user_may_do_what_was_granted_and_no_more(cluster: ControlPlane, kubectl: Kubectl) -> None:
    reader = cluster.user_kubeconfig("reader", groups=("auditors", "interns"))
    identity = json.loads(kubectl("auth", "whoami", "--output=json", kubeconfig=reader))["status"]["userInfo"]
    assert identity["username"] == "reader"
    assert {"auditors", "interns"} <= set(identity["groups"])

    with pytest.raises(AssertionError, match='"reader" cannot list resource "configmaps"'):
        kubectl("get", "configmaps", kubeconfig=reader)

    kubectl("create", "role", "reads-configmaps", "--verb=list", "--resource=configmaps")
    kubectl("create", "rolebinding", "auditors-read", "--role=reads-configmaps", "--group=auditors")
    kubectl("get", "configmaps", kubeconfig=reader)
    with pytest.raises(AssertionError, match='"reader" cannot create resource "configmaps"'):
        kubectl("create", "configmap", "forbidden", kubeconfig=reader)


def test_service_account_acts_in_its_namespace_by_its_own_name(cluster: ControlPlane, kubectl: Kubectl) -> None:
    kubectl("create", "namespace", "accounts")
    kubectl("create", "serviceaccount", "worker", "--namespace=accounts")
    worker = cluster.service_account_kubeconfig("accounts", "worker")
    with pytest.raises(
        AssertionError, match='"system:serviceaccount:accounts:worker" cannot list .* in the namespace "accounts"'
    ):
        kubectl("get", "configmaps", kubeconfig=worker)


def test_restarted_api_server_keeps_address_and_objects(cluster: ControlPlane, kubectl: Kubectl) -> None:
    kubectl("create", "configmap", "kept")
    server, pid = cluster.server, cluster.pids["kube-apiserver"]
    cluster.stop_api_server()
    assert not running(pid)
    with pytest.raises(AssertionError, match="refused"):
        kubectl("get", "configmap", "kept")
    cluster.start_api_server()
    assert cluster.server == server
    assert cluster.pids["kube-apiserver"] != pid
    kubectl("get", "configmap", "kept")


def test_nothing_is_left_after_stop() -> None:
    with ControlPlane(controller_manager=False) as plane:
        directory, pids = plane.directory, plane.pids
        assert pids.keys() == {"watchdog", "etcd", "kube-apiserver"}
        assert all(map(running, pids.values()))
        assert plane.kubeconfig.stat().st_mode & 0o077 == 0
        assert directory.stat().st_mode & 0o077 == 0
        started = time.monotonic()
    assert time.monotonic() - started < 2
    assert not any(map(running, pids.values()))
    assert not directory.exists()


def test_nothing_is_left_when_the_owner_is_killed() -> None:
    program = (
        "import sys; from controlplane import ControlPlane; plane = ControlPlane(controller_manager=False).start()\n"
        "print(plane.directory, *plane.pids.values(), flush=True); sys.stdin.read()"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout
        directory, *pids = owner.stdout.readline().split()
        assert len(pids) == 3
        owner.send_signal(signal.SIGKILL)
    eventually(lambda: not any(running(int(pid)) for pid in pids))
    eventually(lambda: not Path(directory).exists())


def test_given_directory_is_kept_and_found_again(tmp_path: Path) -> None:
    directory = tmp_path / ("deep" * 30) / "state"  # longer than the path of a socket may be
    for command in (["create", "namespace", "remembered"], ["get", "namespace", "remembered"]):
        with ControlPlane(directory, controller_manager=False) as plane:
            subprocess.run([plane.kubectl, f"--kubeconfig={plane.kubeconfig}", *command], check=True)
    assert (directory / "kube-apiserver.log").exists()


def test_kubebuilder_assets_are_started_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kube-apiserver", "etcd", "kubectl"):
        (tmp_path / name).symlink_to(binary(name))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with ControlPlane() as plane:
        assert plane.kubectl == tmp_path / "kubectl"
        # Not in the folder, so not started, though there is one in the cache.
        assert "kube-controller-manager" not in plane.pids
        for name in ("kube-apiserver", "etcd"):
            command = Path(f"/proc/{plane.pids[name]}/cmdline").read_text().split("\0")
            assert command[0] == str(tmp_path / name)


def test_incomplete_kubebuilder_assets_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kubectl").symlink_to(binary("kubectl"))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(ControlPlaneError, match="lacks kube-apiserver, etcd"):
        ControlPlane().start()


def test_program_that_does_not_start_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kube-apiserver", "kubectl"):
        (tmp_path / name).symlink_to(binary(name))
    broken = tmp_path / "etcd"
    broken.write_text("#!/bin/sh\necho 'disk is on fire' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(StartError, match=r"etcd ended with status 3(?s:.*)disk is on fire"):
        ControlPlane().start()


def test_existing_cluster_is_used_and_left_running(cluster: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_EXISTING_CLUSTER", "true")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    with ControlPlane() as plane:
        assert (plane.server, plane.kubeconfig, plane.pids) == (cluster.server, cluster.kubeconfig, {})
        account = plane.service_account_kubeconfig("default", "default")
        assert account.exists()
        with pytest.raises(ControlPlaneError, match="unset USE_EXISTING_CLUSTER"):
            plane.restart_api_server()
    assert not account.exists()
    assert all(map(running, cluster.pids.values()))
