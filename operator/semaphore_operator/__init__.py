"""The operator: brings DistributedSemaphore resources to Redis, and what Redis knows back into their status."""

from importlib.metadata import version
from typing import Final

__version__: Final = version("distributed-semaphore")
