"""The control plane that tests and demo run on: real, with RBAC and controllers, and gone when it is stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from controlplane import BuildError, ControlPlane, ControlPlaneError, StartError, binary, servers
from controlplane.processes import free_ports
from controlplane.programs import PROGRAMS, Program, cache
from controlplane.toolchain import find_go

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.conftest import Kubectl


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


@pytest.fixture
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("USE_EXISTING_CLUSTER", "KUBEBUILDER_ASSETS"):
        monkeypatch.delenv(name, raising=False)


def test_server_and_client_are_of_the_pinned_version(own_cluster: ControlPlane, kubectl: Kubectl) -> None:
    versions = json.loads(kubectl("version", "--output=json"))
    for side in ("clientVersion", "serverVersion"):
        assert (versions[side]["major"], versions[side]["minor"]) == ("1", "37")
        assert versions[side]["gitVersion"].startswith("v1.37.")


def test_a_deleted_namespace_empties_and_goes(kubectl: Kubectl, namespace: str) -> None:
    inner = f"{namespace}-short-lived"
    kubectl("create", "namespace", inner)
    kubectl("create", "configmap", "inside", f"--namespace={inner}")
    kubectl("delete", "namespace", inner, "--timeout=30s")
    assert kubectl("get", "namespace", inner, "--ignore-not-found") == ""


def test_owned_objects_follow_their_owner(kubectl: Kubectl, namespace: str) -> None:
    here = f"--namespace={namespace}"
    kubectl("create", "configmap", "owner", here)
    uid = kubectl("get", "configmap", "owner", here, "--output=jsonpath={.metadata.uid}")
    owned = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "owned",
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}],
        },
    }
    kubectl("apply", here, "--filename=-", stdin=json.dumps(owned))
    kubectl("delete", "configmap", "owner", here)
    kubectl("wait", "--for=delete", "configmap/owned", here, "--timeout=30s")


def test_user_may_do_what_was_granted_and_no_more(own_cluster: ControlPlane, kubectl: Kubectl, namespace: str) -> None:
    here = f"--namespace={namespace}"
    reader = own_cluster.user_kubeconfig("reader", groups=("auditors", "interns"))
    identity = json.loads(kubectl("auth", "whoami", "--output=json", kubeconfig=reader))["status"]["userInfo"]
    assert identity["username"] == "reader"
    assert {"auditors", "interns"} <= set(identity["groups"])

    with pytest.raises(AssertionError, match='"reader" cannot list resource "configmaps"'):
        kubectl("get", "configmaps", here, kubeconfig=reader)

    kubectl("create", "role", "reads-configmaps", here, "--verb=list", "--resource=configmaps")
    kubectl("create", "rolebinding", "auditors-read", here, "--role=reads-configmaps", "--group=auditors")
    assert "kube-root-ca.crt" in kubectl("get", "configmaps", here, kubeconfig=reader)
    with pytest.raises(AssertionError, match='"reader" cannot create resource "configmaps"'):
        kubectl("create", "configmap", "forbidden", here, kubeconfig=reader)


def test_service_account_acts_by_its_own_name(cluster: ControlPlane, kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "serviceaccount", "worker", f"--namespace={namespace}")
    worker = cluster.service_account_kubeconfig(namespace, "worker")
    # Without --namespace, for the kubeconfig names that of the account.
    refused = f'"system:serviceaccount:{namespace}:worker" cannot list .* in the namespace "{namespace}"'
    with pytest.raises(AssertionError, match=refused):
        kubectl("get", "configmaps", kubeconfig=worker)


def test_restarted_api_server_keeps_address_and_objects(
    own_cluster: ControlPlane, kubectl: Kubectl, namespace: str
) -> None:
    server, pid = own_cluster.server, own_cluster.pids["kube-apiserver"]
    own_cluster.stop_api_server()
    try:
        assert not running(pid)
        with pytest.raises(AssertionError, match="refused"):
            kubectl("get", "namespace", namespace)
    finally:
        own_cluster.start_api_server()
    assert own_cluster.server == server
    assert own_cluster.pids["kube-apiserver"] != pid
    assert namespace in kubectl("get", "namespace", namespace)


def test_nothing_is_left_when_the_owner_is_killed(plain_environment: None) -> None:
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


def test_given_directory_is_kept_and_found_again_and_a_taken_port_is_given_up_for_another(
    plain_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / ("deep" * 30) / "state"  # longer than the path of a socket may be
    with ControlPlane(directory, controller_manager=False) as plane:
        subprocess.run([plane.kubectl, f"--kubeconfig={plane.kubeconfig}", "create", "namespace", "kept"], check=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([[taken.getsockname()[1]], free_ports(1)])
        monkeypatch.setattr(servers, "free_ports", lambda count: next(ports))
        with ControlPlane(directory, controller_manager=False) as plane:
            subprocess.run([plane.kubectl, f"--kubeconfig={plane.kubeconfig}", "get", "namespace", "kept"], check=True)
            assert "address already in use" in (directory / "kube-apiserver.log").read_text()
            assert not plane.server.endswith(f":{taken.getsockname()[1]}")


def test_kubebuilder_assets_are_started_instead_and_nothing_is_left_after_stop(
    plain_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kube-apiserver", "etcd", "kubectl"):
        (tmp_path / name).symlink_to(binary(name))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with ControlPlane() as plane:
        assert plane.kubectl == tmp_path / "kubectl"
        directory, pids = plane.directory, plane.pids
        # kube-controller-manager is not in the folder, so not started, though there is one in the cache.
        assert pids.keys() == {"watchdog", "etcd", "kube-apiserver"}
        for name in ("kube-apiserver", "etcd"):
            command = Path(f"/proc/{pids[name]}/cmdline").read_text().split("\0")
            assert command[0] == str(tmp_path / name)
        assert all(map(running, pids.values()))
        assert plane.kubeconfig.stat().st_mode & 0o077 == 0
        assert directory.stat().st_mode & 0o077 == 0
    assert not any(map(running, pids.values()))
    assert not directory.exists()


def test_incomplete_kubebuilder_assets_are_refused_by_name(
    plain_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kubectl").symlink_to(binary("kubectl"))
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    with pytest.raises(ControlPlaneError, match="lacks kube-apiserver, etcd"):
        ControlPlane().start()


def test_program_that_does_not_start_shows_its_log(
    plain_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kube-apiserver", "kubectl"):
        (tmp_path / name).symlink_to(binary(name))
    broken = tmp_path / "etcd"
    broken.write_text("#!/bin/sh\necho 'disk is on fire' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(StartError, match=r"etcd ended with status 3(?s:.*)disk is on fire"):
        ControlPlane().start()


def test_existing_cluster_is_used_and_left_running(own_cluster: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USE_EXISTING_CLUSTER", "true")
    monkeypatch.setenv("KUBECONFIG", str(own_cluster.kubeconfig))
    with ControlPlane() as plane:
        assert (plane.server, plane.kubeconfig, plane.pids) == (own_cluster.server, own_cluster.kubeconfig, {})
        account = plane.service_account_kubeconfig("default", "default")
        assert account.exists()
        with pytest.raises(ControlPlaneError, match="unset USE_EXISTING_CLUSTER"):
            plane.restart_api_server()
    assert not account.exists()
    assert all(map(running, own_cluster.pids.values()))


def test_command_line_prints_what_to_export_and_ends_tidily(plain_environment: None) -> None:
    command = [sys.executable, "-m", "controlplane", "up", "--no-controller-manager"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout
        exports = up.stdout.readline() + up.stdout.readline() + up.stdout.readline()
        shell = ["sh", "-c", f"{exports}\nkubectl get namespaces --output=name"]
        listed = subprocess.run(shell, capture_output=True, text=True, check=True).stdout
        assert "namespace/kube-system" in listed
        up.terminate()
    assert up.returncode == 130
    kubeconfig = re.search(r"KUBECONFIG=(.+)", exports)
    assert kubeconfig
    assert not Path(kubeconfig[1]).exists()


@pytest.fixture
def tiny(plain_environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A program of one line, built into a cache of the test's own."""
    (tmp_path / "go.mod").write_text("module example.test/tiny\n\ngo 1.26.0\n")
    (tmp_path / "go.sum").touch()
    (tmp_path / "main.go").write_text('package main\n\nfunc main() { println("built") }\n')
    go_cache = subprocess.run([find_go(cache()), "env", "GOCACHE"], capture_output=True, text=True, check=True).stdout
    monkeypatch.setenv("GOCACHE", go_cache.strip())  # where what Go itself consists of is compiled already
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    program = Program("tiny", "example.test/tiny", tmp_path)
    monkeypatch.setitem(PROGRAMS, "tiny", program)
    return program


def test_two_who_want_one_program_build_it_once(tiny: Program, capfd: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(binary, ["tiny", "tiny"])
    assert first == second == tiny.cached
    assert capfd.readouterr().err.count("Building tiny") == 1
    assert subprocess.run([first], capture_output=True, text=True, check=True).stderr == "built\n"
    assert [path.name for path in first.parent.iterdir()] == ["tiny"]


def test_build_that_fails_says_why_and_leaves_nothing(tiny: Program) -> None:
    (tiny.module / "main.go").write_text("package main\n\nfunc main() { wrong() }\n")
    with pytest.raises(BuildError, match=r"failed while compiling(?s:.*)undefined: wrong"):
        binary("tiny")
    assert list(tiny.cached.parent.iterdir()) == []


def test_changed_module_is_another_program(tiny: Program) -> None:
    before = tiny.cached
    (tiny.module / "go.sum").write_text("another content\n")
    assert tiny.cached != before
    assert tiny.cached.name == before.name


def test_unknown_program_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BuildError, match=r"no program 'kubelet'.*kube-apiserver"):
        binary("kubelet")
