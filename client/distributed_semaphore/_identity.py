"""Who this process is, for those who look at holders and waiters."""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from pathlib import Path
from typing import Final

#: Environment variables as the downward API usually sets them, and the names under which the status shows them.
_FROM_ENVIRONMENT: Final = {
    "pod": "POD_NAME",
    "namespace": "POD_NAMESPACE",
    "uid": "POD_UID",
    "node": "NODE_NAME",
    "app": "SEMAPHORE_APP",
    "client": "SEMAPHORE_CLIENT",  # value of the pod's label semaphores.dev/client
}


def new_client_id() -> str:
    """Make the name of this process in Redis: 16 characters that nobody else has."""
    return secrets.token_hex(8)


def identity() -> str:
    """Describe this process as JSON: pod, namespace, uid, node, app where known, always host and pid."""
    known = {field: value for field, variable in _FROM_ENVIRONMENT.items() if (value := os.environ.get(variable))}
    known.setdefault("app", Path(sys.argv[0]).name or "python")
    return json.dumps({**known, "host": socket.gethostname(), "pid": str(os.getpid())}, separators=(",", ":"))
