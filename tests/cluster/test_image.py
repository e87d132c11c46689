"""The images: built, and run as the manifests would run them. Slow, so it is to be asked for."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from tests.cluster.releases import ROOT, Installed, eventually

from distributed_semaphore import Semaphore
from distributed_semaphore.testing import RedisServer

if TYPE_CHECKING:
    from tests.cluster.conftest import Kubectl


BUILD, RUN = ROOT / "hack" / "image" / "build", ROOT / "hack" / "image" / "run"
INSIDE = "/etc/semaphore-operator/redis"  # where the chart mounts the Secret
PROGRAM = b"/opt/semaphore-operator/bin/semaphore-operator"

pytestmark = [
    pytest.mark.skipif(not os.environ.get("TEST_IMAGE"), reason="TEST_IMAGE=1 builds the image and runs it"),
    pytest.mark.skipif(
        not shutil.which("docker")
        and not shutil.which("buildah")
        and (os.getuid() != 0 or not shutil.which("apt-get")),
        reason="neither Docker nor buildah is here, nor can it be installed: that takes root and apt-get",
    ),
    pytest.mark.timeout(900),  # a first build fetches a base image and some forty packages
]


@pytest.fixture(scope="module")
def image() -> str:
    built = subprocess.run([BUILD], stdout=subprocess.PIPE, text=True, check=True)
    return built.stdout.strip()


def output(image: str, *arguments: str) -> str:
    """What the program writes; what it complains of is seen in the test's own output."""
    return subprocess.run(
        [RUN, *arguments], env=os.environ | {"TAG": image}, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def test_the_program_is_the_entrypoint(image: str) -> None:
    assert output(image, "--version").strip() == f"semaphore-operator {image.rpartition(':')[2]}"


def process_ids() -> set[int]:
    """The operators that run from an image on this machine."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and PROGRAM in (entry / "cmdline").read_bytes().split(b"\0"):
                found.add(int(entry.name))
        except OSError:  # it has ended meanwhile
            continue
    return found


def test_it_serves_a_cluster_as_nobody_with_nothing_to_write_on(
    image: str, installed: Installed, kubectl: Kubectl, tmp_path: Path
) -> None:
    here = installed.namespace
    with RedisServer() as server:
        installed.install({"redis": {"url": server.url}, "operator": {"sweepSeconds": 0.2}})
        resource = {
            "apiVersion": "semaphores.dev/v1alpha1",
            "kind": "DistributedSemaphore",
            "metadata": {"name": "licensed-api"},
            "spec": {"limit": 5},
        }
        kubectl("apply", here, "--filename=-", stdin=json.dumps(resource))

        # The Secret, as the kubelet would mount it, and the account. The certificate is a file beside the kubeconfig:
        # one inside it would have to be written to a temporary file, and there is nothing to write on.
        account = yaml.safe_load(installed.account.read_text())
        cluster = account["clusters"][0]["cluster"]
        certificate = base64.b64decode(cluster.pop("certificate-authority-data"))
        cluster["certificate-authority"] = f"{INSIDE}/ca.crt"
        mounted = tmp_path / "mounted"
        mounted.mkdir(mode=0o755)
        (mounted / "ca.crt").write_bytes(certificate)
        (mounted / "kubeconfig").write_text(yaml.safe_dump(account))
        (mounted / "url").write_text(server.url)
        environment = {
            "TAG": image,
            "MOUNTS": f"{mounted}:{INSIDE}",
            "ENVIRONMENT": "KUBECONFIG",
            "KUBECONFIG": f"{INSIDE}/kubeconfig",
        }
        before = process_ids()
        with installed.log.open("w") as log:
            # The last --port wins, so that no other program of this machine is in the way.
            process = subprocess.Popen(
                [RUN, *installed.arguments, "--host=127.0.0.1", "--port=0"], env=os.environ | environment, stderr=log
            )
        try:
            kubectl("wait", "--for=condition=Ready", "dsem/licensed-api", here, "--timeout=50s")
            # By its watch, of which a listing once a minute is no proof.
            kubectl("scale", "dsem", "licensed-api", here, "--replicas=8")
            kubectl("wait", "--for=jsonpath={.status.limit}=8", "dsem/licensed-api", here, "--timeout=20s")
            [operator] = process_ids() - before
            status = dict(
                line.split(":\t", 1)
                for line in Path(f"/proc/{operator}/status").read_text().splitlines()
                if ":\t" in line
            )
            assert status["Uid"].split() == ["65532"] * 4
            assert status["Gid"].split() == ["65532"] * 4
            assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
            assert status["NoNewPrivs"] == "1"
            mounts = [line.split() for line in Path(f"/proc/{operator}/mounts").read_text().splitlines()]
            [root] = [fields for fields in mounts if fields[1] == "/"]
            assert "ro" in root[3].split(",")
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            assert "Traceback" not in installed.log.read_text()
        except AssertionError as error:
            error.add_note(f"The operator's log:\n{installed.log.read_text()}")
            raise
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(20)
        eventually(lambda: process_ids() == before)


def test_the_worker_shares_a_semaphore_and_leaves_nothing_behind(tmp_path: Path) -> None:
    image = subprocess.run([BUILD, "worker"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    with RedisServer() as server, (tmp_path / "log").open("w") as log:
        semaphore = Semaphore("shared", limit=2, lease=5, redis=server.url)
        with semaphore:
            environment = {"TAG": image, "SEMAPHORE": "shared", "SEMAPHORE_REDIS_URL": server.url, "SECONDS": "0.05"}
            environment["ENVIRONMENT"] = "SEMAPHORE SEMAPHORE_REDIS_URL SECONDS"
            worker = subprocess.Popen([RUN], env=os.environ | environment, stdout=log, stderr=log)
            try:
                eventually(lambda: (tmp_path / "log").read_text().count("has called") >= 20, 60)
                assert semaphore.statistics().held <= 2
                worker.send_signal(signal.SIGTERM)
                assert worker.wait(20) == 0, (tmp_path / "log").read_text()
            finally:
                if worker.poll() is None:
                    worker.terminate()
                    worker.wait(20)
            left = semaphore.statistics()
        assert (left.held, left.waiting) == (1, 0)
        assert "Traceback" not in (tmp_path / "log").read_text()
