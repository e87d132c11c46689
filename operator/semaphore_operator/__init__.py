"""The operator: brings DistributedSemaphore resources to Redis, and what Redis knows back into their status."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path
from typing import Final

__version__: Final = version("distributed-semaphore")

try:
    Path.home()
except RuntimeError:  # the kubernetes package asks for it when it is imported, and a pod's uid may have none
    os.environ["HOME"] = "/"  # as container runtimes set it
