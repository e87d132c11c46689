"""Writes kubeconfig files, the form in which kubectl and every client library takes a cluster and a user."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

    from controlplane.pki import Credential


def token_user(token: str) -> dict[str, Any]:
    """Describe a user who shows a bearer token."""
    return {"token": token}


def certificate_user(credential: Credential) -> dict[str, Any]:
    """Describe a user who shows a client certificate, written into the file whole."""
    return {"client-certificate-data": _base64(credential.certificate), "client-key-data": _base64(credential.key)}


def write(path: Path, cluster: dict[str, Any], user: dict[str, Any], namespace: str = "default") -> None:
    """Write a kubeconfig of one cluster and one user, readable by its owner only."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "controlplane",
        "contexts": [
            {"name": "controlplane", "context": {"cluster": "controlplane", "user": "user", "namespace": namespace}}
        ],
        "clusters": [{"name": "controlplane", "cluster": cluster}],
        "users": [{"name": "user", "user": user}],
    }
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(document, sort_keys=False))


def tls_cluster(server: str, authority: bytes) -> dict[str, Any]:
    """Describe a cluster by its URL and the certificate of its authority, written into the file whole."""
    return {"server": server, "certificate-authority-data": _base64(authority)}


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
