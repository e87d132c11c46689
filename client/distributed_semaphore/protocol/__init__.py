"""The protocol: what stands in Redis and the Lua scripts that alone may change it.

This layer knows keys, scripts and the shapes of their replies. It opens no connection of its own and
knows neither the client's API nor the operator; both build on it.
"""

from distributed_semaphore.protocol.config import Config, State
from distributed_semaphore.protocol.keys import Keys, SemaphoreName
from distributed_semaphore.protocol.scripts import (
    SCRIPTS,
    Script,
    UnreadableError,
    audit,
    declare,
    evict,
    find,
    forget,
    inspect,
    mark,
    reap,
    revoke,
)
from distributed_semaphore.protocol.snapshot import Counters, Holder, Snapshot, Waiter, parse_snapshot

__all__ = [
    "SCRIPTS",
    "Config",
    "Counters",
    "Holder",
    "Keys",
    "Script",
    "SemaphoreName",
    "Snapshot",
    "State",
    "UnreadableError",
    "Waiter",
    "audit",
    "declare",
    "evict",
    "find",
    "forget",
    "inspect",
    "mark",
    "parse_snapshot",
    "reap",
    "revoke",
]
