"""The operator as a container's program: process 1, of one version."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from semaphore_operator import __version__

ROOT = Path(__file__).parents[2]
CHARTS = ("semaphore-operator", "distributed-semaphore")


def catches(process: int, number: signal.Signals) -> bool:
    """Whether a process has a handler of a signal."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    [caught] = [int(line.split()[1], 16) for line in lines if line.startswith("SigCgt")]
    return bool(caught >> (number - 1) & 1)


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="a process namespace takes root")
def test_process_1_that_still_starts_ends_by_sigterm(tmp_path: Path) -> None:
    """The kernel drops a signal to process 1 that has no handler; the pod would end with its grace period."""
    log = tmp_path / "log"
    command = [sys.executable, "-m", "semaphore_operator", "--redis=redis://127.0.0.1:1", "--port=0"]
    with log.open("w") as output:
        outer = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", *command], stderr=output)
        try:
            children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
            deadline = time.monotonic() + 30
            while not (inner := children.read_text().split()) or not catches(int(inner[0]), signal.SIGTERM):
                assert outer.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.005)
            os.kill(int(inner[0]), signal.SIGTERM)
            assert outer.wait(30) == 0
        finally:
            outer.kill()
            outer.wait()
    assert log.read_text() == "", "it was still importing"


def test_one_version_is_everywhere() -> None:
    """A chart's default image, and the worker's, is the one that hack/image/build makes."""
    charts = [yaml.safe_load((ROOT / "charts" / name / "Chart.yaml").read_text()) for name in CHARTS]
    assert {chart[field] for chart in charts for field in ("version", "appVersion")} == {__version__}
    worker = yaml.safe_load((ROOT / "examples" / "worker" / "deployment.yaml").read_text())
    [container] = worker["spec"]["template"]["spec"]["containers"]
    assert container["image"].rpartition(":")[2] == __version__
