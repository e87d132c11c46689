"""A real Kubernetes API for tests and the demo: one that is started here, or one that is there already."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from controlplane import kubeconfig
from controlplane.build import binaries, binary, from_assets
from controlplane.errors import ControlPlaneError
from controlplane.servers import Servers

if TYPE_CHECKING:
    from types import TracebackType


class ControlPlane:
    """A Kubernetes API server with all it needs, for as long as the context lasts.

    - Usually: kube-apiserver, etcd and kube-controller-manager are built once, and started on the loopback.
    - KUBEBUILDER_ASSETS=<folder>: the folder's programs are started instead; a controller manager only if it has one.
    - USE_EXISTING_CLUSTER=true: the cluster of $KUBECONFIG is used; nothing is started, nothing is stopped.

    `directory` is where data, keys and logs go; it is kept, and its etcd data is found again at the next start. Without
    it, a temporary folder is used and removed. Should this process die, the servers and the temporary folder go too.
    """

    def __init__(self, directory: Path | None = None, *, controller_manager: bool = True) -> None:
        self.existing = os.environ.get("USE_EXISTING_CLUSTER", "").lower() == "true"
        self._wants_controller_manager = controller_manager
        self._kept = directory
        self._directory: Path | None = None
        self._servers: Servers | None = None
        self._cluster: dict[str, Any] = {}

    def start(self) -> Self:
        """Start the servers, about 4 s once they are built, and wait until they are ready.

        Raises BuildError, StartError with the end of a log, or ControlPlaneError if an existing cluster is not there.
        """
        if self._directory:
            raise ControlPlaneError("This control plane runs already; stop it before starting it again.")
        self._directory = (self._kept or Path(tempfile.mkdtemp(prefix="controlplane-"))).resolve()
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self.existing:
                self._servers = Servers(self._programs(), self._directory, temporary=not self._kept)
                self._servers.start()
            self._cluster = self._read_cluster()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End at once what was started, and remove the temporary folder. Does nothing the second time."""
        if self._servers:
            self._servers.close()
            self._servers = None
        if self._directory and not self._kept:
            shutil.rmtree(self._directory)
        self._directory = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def directory(self) -> Path:
        """Folder of data, keys, logs and kubeconfigs while it runs."""
        if not self._directory:
            raise ControlPlaneError("The control plane does not run: call start() or use it in a `with` statement.")
        return self._directory

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of a user who may do everything (of an existing cluster: $KUBECONFIG)."""
        if self._servers:
            return self._servers.admin_kubeconfig
        return Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")

    @property
    def server(self) -> str:
        """URL of the API server."""
        return str(self._cluster["server"])

    @property
    def kubectl(self) -> Path:
        """Path of the kubectl that fits; for an existing cluster the one on the PATH, if there is one."""
        on_path = shutil.which("kubectl") if self.existing else None
        return Path(on_path) if on_path else binary("kubectl")

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of what was started and still runs, by name of the program; empty for an existing cluster."""
        return self._servers.pids() if self._servers else {}

    def user_kubeconfig(self, user: str, groups: tuple[str, ...] = ()) -> Path:
        """Write the kubeconfig of a user of this name and these groups, who may do what RBAC grants them.

        Raises ControlPlaneError for an existing cluster, whose authority is not ours.
        """
        credential = self._ours("Making a user").authority.client(user, groups)
        return self._write_kubeconfig(user, kubeconfig.certificate_user(credential), "default")

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """Write the kubeconfig of a ServiceAccount, which must exist, with a token that lasts for a day."""
        token = self._run_kubectl("create", "token", name, f"--namespace={namespace}", "--duration=24h")
        return self._write_kubeconfig(f"{namespace}.{name}", kubeconfig.token_user(token.strip()), namespace)

    def stop_api_server(self) -> None:
        """End the API server as a crash would; start_api_server() brings it back with all its data."""
        self._ours("Stopping the API server").kill_api_server()

    def start_api_server(self) -> None:
        """Start the API server again, at the same address, and wait until it is ready."""
        self._ours("Starting the API server").start_api_server()

    def restart_api_server(self) -> None:
        """End the API server as a crash would, start it again and wait until it is ready, about 3 s."""
        self.stop_api_server()
        self.start_api_server()

    def _programs(self) -> dict[str, Path]:
        names = ["kube-apiserver", "etcd", "kubectl"]
        assets = os.environ.get("KUBEBUILDER_ASSETS")
        if assets:
            missing = [name for name in names if not from_assets(name)]
            if missing:
                raise ControlPlaneError(f"KUBEBUILDER_ASSETS={assets} lacks {', '.join(missing)}: unset or correct it.")
        if self._wants_controller_manager and (not assets or from_assets("kube-controller-manager")):
            names.append("kube-controller-manager")
        return binaries(names)

    def _ours(self, wish: str) -> Servers:
        if self._servers:
            return self._servers
        if self.existing:
            raise ControlPlaneError(f"{wish} needs a control plane started here: unset USE_EXISTING_CLUSTER.")
        raise ControlPlaneError(f"{wish} needs a running control plane: call start() first.")

    def _read_cluster(self) -> dict[str, Any]:
        view = self._run_kubectl("config", "view", "--minify", "--raw", "--flatten", "--output=json")
        cluster: dict[str, Any] = json.loads(view)["clusters"][0]["cluster"]
        return cluster

    def _run_kubectl(self, *arguments: str) -> str:
        command: list[str | Path] = [self.kubectl, f"--kubeconfig={self.kubeconfig}", *arguments]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            said = answer.stderr.strip()
            raise ControlPlaneError(f"kubectl {' '.join(arguments)} failed with {self.kubeconfig}: {said}")
        return answer.stdout

    def _write_kubeconfig(self, name: str, user: dict[str, Any], namespace: str) -> Path:
        folder = self.directory / "users"
        folder.mkdir(exist_ok=True)
        path = folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '-', name)}.kubeconfig"
        kubeconfig.write(path, self._cluster, user, namespace)
        return path
