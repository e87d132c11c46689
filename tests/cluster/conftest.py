"""A real API server for the tests of this folder, and a kubectl that talks to it."""

from __future__ import annotations

import secrets
import subprocess
from typing import TYPE_CHECKING, Protocol

import pytest

from controlplane import ControlPlane

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Kubectl(Protocol):
    """Runs kubectl as a user would; an AssertionError carries what it wrote to standard error."""

    def __call__(self, *arguments: str, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        """Return its standard output; `kubeconfig` is another user's, without it the admin's."""


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[ControlPlane]:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    plane = ControlPlane()
    if capture:
        # The first start builds for minutes, and says so.
        with capture.global_and_fixture_disabled():
            plane.start()
    else:
        plane.start()
    yield plane
    plane.stop()


@pytest.fixture
def own_cluster(cluster: ControlPlane) -> ControlPlane:
    """The cluster, for tests that do to it what is only done to one of our own."""
    if cluster.existing:
        pytest.skip("not on an existing cluster (USE_EXISTING_CLUSTER)")
    return cluster


@pytest.fixture
def namespace(kubectl: Kubectl) -> Iterator[str]:
    """A namespace of the test's own."""
    name = f"test-{secrets.token_hex(4)}"
    kubectl("create", "namespace", name)
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def kubectl(cluster: ControlPlane) -> Kubectl:
    def run(*arguments: str, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        answer = subprocess.run(
            [cluster.kubectl, f"--kubeconfig={kubeconfig or cluster.kubeconfig}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if answer.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(arguments)} ended with {answer.returncode}: {answer.stderr}")
        return answer.stdout

    return run
