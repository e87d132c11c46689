"""A distributed semaphore on Redis: fair, crash-safe, and with one limit for all, kept by a Kubernetes resource."""

from distributed_semaphore._async import AsyncSemaphore
from distributed_semaphore._errors import (
    AcquireTimeout,
    Closed,
    InvalidArgument,
    NotConfigured,
    QueueFull,
    ResourceUnreadable,
    SemaphoreError,
    SlotLost,
    Unavailable,
    WeightTooLarge,
    WouldWait,
    WrongRedis,
)
from distributed_semaphore._listeners import Watch, add_listener, remove_listener
from distributed_semaphore._request import ReleaseOutcome, Slot
from distributed_semaphore._statistics import Statistics
from distributed_semaphore._sync import Semaphore
from distributed_semaphore.protocol.config import State
from distributed_semaphore.protocol.snapshot import Counters

__all__ = [
    "AcquireTimeout",
    "AsyncSemaphore",
    "Closed",
    "Counters",
    "InvalidArgument",
    "NotConfigured",
    "QueueFull",
    "ReleaseOutcome",
    "ResourceUnreadable",
    "Semaphore",
    "SemaphoreError",
    "Slot",
    "SlotLost",
    "State",
    "Statistics",
    "Unavailable",
    "Watch",
    "WeightTooLarge",
    "WouldWait",
    "WrongRedis",
    "add_listener",
    "remove_listener",
]
