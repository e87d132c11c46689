"""The servers of a control plane: etcd, kube-apiserver and kube-controller-manager, on this machine's loopback only."""

from __future__ import annotations

import http.client
import secrets
import ssl
from typing import TYPE_CHECKING

from controlplane import kubeconfig
from controlplane.pki import Authority, signing_key
from controlplane.processes import Group, StartError, free_ports

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# The controllers that an API needs to behave as users know it. None that makes or runs pods: there is no node.
CONTROLLERS = (
    "namespace-controller",  # a deleted namespace empties and goes
    "garbage-collector-controller",  # owned objects follow their owner
    "serviceaccount-controller",  # every namespace has its account "default"
    "serviceaccount-token-controller",
    "root-ca-certificate-publisher-controller",  # and the certificate that its pods would trust
    "clusterrole-aggregation-controller",  # roles labelled aggregate-to-edit reach the role "edit"
)
# Generous, for machines that do other things at the same time; usual are 0.3, 3 and 1 s.
START_TIMEOUTS = {"etcd": 30.0, "kube-apiserver": 90.0, "kube-controller-manager": 60.0}
PORT_ATTEMPTS = 5


class Servers:
    """A running etcd and API server, and a controller manager if the programs have one.

    Everything is in `directory`: data, keys, and a log for each program. With `temporary`, the folder goes with them.
    etcd listens on a socket in the folder and nowhere else, so no other user of the machine gets at it.
    """

    def __init__(self, programs: Mapping[str, Path], directory: Path, *, temporary: bool) -> None:
        self.directory = directory
        self.authority = Authority()
        self.port = 0
        self._programs = programs
        self._token = secrets.token_urlsafe()
        self._write_keys()
        self._trust = ssl.create_default_context(cadata=self.authority.certificate.decode())
        self._group = Group(logs=directory, doomed=directory if temporary else None)

    @property
    def url(self) -> str:
        """URL of the API server."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def admin_kubeconfig(self) -> Path:
        """Kubeconfig of a user who may do everything."""
        return self.directory / "admin.kubeconfig"

    def pids(self) -> dict[str, int]:
        """Process ids of what runs, by name."""
        return self._group.pids()

    def start(self) -> None:
        """Start all and wait until they serve; raise StartError with the end of the log of the one that does not.

        The caller calls close() in any case.
        """
        self._start_etcd()
        self._start_api_server_on_free_port()
        kubeconfig.write(
            self.admin_kubeconfig,
            kubeconfig.tls_cluster(self.url, self.authority.certificate),
            kubeconfig.token_user(self._token),
        )
        if "kube-controller-manager" in self._programs:
            self._start_controller_manager()

    def start_api_server(self) -> None:
        """Start the API server on its port and wait until it is ready, about 3 s."""
        self._group.start(self._api_server_command())
        self._wait("kube-apiserver", "/readyz")

    def kill_api_server(self) -> None:
        """End the API server as a crash would."""
        self._group.kill("kube-apiserver")

    def close(self) -> None:
        """End everything at once."""
        self._group.close()

    def _start_etcd(self) -> None:
        # Addresses relative to the folder: the path of a socket may have 107 characters at most.
        client, peer = "unix://etcd.sock", "unix://etcd-peer.sock"
        for stale in ("etcd.sock", "etcd-peer.sock"):
            (self.directory / stale).unlink(missing_ok=True)
        command: list[str | Path] = [
            self._programs["etcd"],
            f"--data-dir={self.directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",  # nothing here outlives a power cut
            "--log-level=warn",
        ]
        self._group.start(command)
        self._group.wait_until("etcd", self._etcd_listens, START_TIMEOUTS["etcd"])

    def _etcd_listens(self) -> bool:
        return (self.directory / "etcd.sock").exists()

    def _start_api_server_on_free_port(self) -> None:
        for attempt in range(1, PORT_ATTEMPTS + 1):
            (self.port,) = free_ports(1)
            try:
                self.start_api_server()
            except StartError as error:
                if "address already in use" not in error.log or attempt == PORT_ATTEMPTS:
                    raise
            else:
                return

    def _api_server_command(self) -> list[str | Path]:
        keys = self.directory / "pki"
        return [
            self._programs["kube-apiserver"],
            "--etcd-servers=unix://etcd.sock",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--tls-cert-file={keys / 'server.crt'}",
            f"--tls-private-key-file={keys / 'server.key'}",
            f"--client-ca-file={keys / 'ca.crt'}",
            f"--token-auth-file={keys / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={keys / 'service-account.key'}",
            f"--service-account-signing-key-file={keys / 'service-account.key'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--endpoint-reconciler-type=none",  # an endpoint on the loopback is refused by validation
            "--profiling=false",
            # Without a controller that makes accounts, this would refuse every pod.
            *([] if "kube-controller-manager" in self._programs else ["--disable-admission-plugins=ServiceAccount"]),
        ]

    def _start_controller_manager(self) -> None:
        keys = self.directory / "pki"
        command: list[str | Path] = [
            self._programs["kube-controller-manager"],
            f"--kubeconfig={self.admin_kubeconfig}",
            f"--root-ca-file={keys / 'ca.crt'}",
            f"--service-account-private-key-file={keys / 'service-account.key'}",
            f"--controllers={','.join(CONTROLLERS)}",
            "--leader-elect=false",
            "--secure-port=0",
            "--profiling=false",
        ]
        self._group.start(command)
        self._wait("kube-controller-manager", "/api/v1/namespaces/default/serviceaccounts/default")

    def _wait(self, name: str, path: str) -> None:
        self._group.wait_until(name, lambda: self._answers(path), START_TIMEOUTS[name])

    def _answers(self, path: str) -> bool:
        # http.client and not urllib, for which a proxy may be set that does not reach this machine's loopback.
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=5, context=self._trust)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {self._token}"})
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _write_keys(self) -> None:
        keys = self.directory / "pki"
        keys.mkdir(mode=0o700, exist_ok=True)
        server = self.authority.server(["127.0.0.1"], ["localhost", "kubernetes.default.svc"])
        for name, content in (
            ("ca.crt", self.authority.certificate),
            ("server.crt", server.certificate),
            ("server.key", server.key),
            ("service-account.key", signing_key()),
            ("tokens.csv", f'{self._token},admin,admin,"system:masters"\n'.encode()),
        ):
            path = keys / name
            path.touch(mode=0o600)
            path.write_bytes(content)
