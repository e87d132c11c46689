"""Redis as it is run for real: a cluster of three primaries, and a primary with a replica that Sentinel watches."""

from __future__ import annotations

import itertools
import socket
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from redis.crc import key_slot

import redis
from distributed_semaphore.testing import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SLOTS = 16384
NODE_TIMEOUT_MS = 1000


def wait_for(condition: Callable[[], bool], timeout: float = 20.0) -> None:
    """Wait until a condition holds, or fail."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {condition}")
        time.sleep(0.02)


def cluster_port() -> int:
    """Find a free port whose cluster bus port, 10,000 above, is free as well."""
    while True:
        with socket.socket() as probe, socket.socket() as bus:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
            if port < 55000:
                try:
                    bus.bind(("127.0.0.1", port + 10000))
                except OSError:
                    continue
                return port


class Cluster:
    """Some primaries that share the slots evenly, and a replica for the first of them."""

    def __init__(self, servers: list[RedisServer]) -> None:
        self.servers = servers
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in servers)
        self._names = (f"clustered/{i}" for i in itertools.count())
        self.nodes = [redis.Redis(port=server.port, decode_responses=True) for server in servers]
        *primaries, replica = self.nodes
        share = SLOTS // len(primaries)
        for i, node in enumerate(primaries):
            last = SLOTS - 1 if node is primaries[-1] else (i + 1) * share - 1
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", i * share, last)
            node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for server in servers[1:]:
            self.nodes[0].execute_command("CLUSTER", "MEET", "127.0.0.1", server.port)
        wait_for(lambda: all(node.cluster("INFO")["cluster_known_nodes"] == str(len(servers)) for node in self.nodes))
        replica.execute_command("CLUSTER", "REPLICATE", primaries[0].execute_command("CLUSTER", "MYID"))
        wait_for(lambda: all(node.cluster("INFO")["cluster_state"] == "ok" for node in self.nodes))
        wait_for(lambda: replica.info("replication")["master_link_status"] == "up")

    def owner(self, name: str) -> int:
        """Say which primary has a semaphore's slot at first."""
        return min(key_slot(name.encode()) // (SLOTS // (len(self.nodes) - 1)), len(self.nodes) - 2)

    def name_on(self, node: int) -> str:
        """Find a new semaphore's name whose slot is on a primary."""
        return next(name for name in self._names if self.owner(name) == node)

    def is_primary(self, node: int) -> bool:
        """Say whether a node serves slots and sees itself as a primary."""
        about = self.nodes[node].cluster("NODES")
        return any("myself,master" in line["flags"] and line["slots"] for line in about.values())

    def move_slot(self, name: str, source: int, target: int) -> None:
        """Move the slot of a semaphore to another primary, as `redis-cli --cluster reshard` does."""
        slot = key_slot(name.encode())
        here, there = self.nodes[source], self.nodes[target]
        ids = [node.execute_command("CLUSTER", "MYID") for node in (here, there)]
        there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        while keys := here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            here.execute_command("MIGRATE", "127.0.0.1", self.servers[target].port, "", 0, 5000, "KEYS", *keys)
        for node in (there, here):
            node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])

    def close(self) -> None:
        for node in self.nodes:
            node.close()


@contextmanager
def cluster(binary: Path) -> Iterator[Cluster]:
    """Run three primaries and a replica of the first."""
    options = (
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        str(NODE_TIMEOUT_MS),
        "--cluster-config-file",
        "nodes",
    )
    options += ("--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0")
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer(binary, options, port=cluster_port())) for _ in range(4)]
        running = Cluster(servers)
        stack.callback(running.close)
        yield running


class Watched:
    """A primary, its replica, and a Sentinel, patient until a test says otherwise: a busy machine is no fault."""

    def __init__(self, primary: RedisServer, replica: RedisServer, sentinel: RedisServer) -> None:
        self.primary, self.replica, self.sentinel = primary, replica, sentinel
        self.url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main/0"

    def on(self, server: RedisServer) -> redis.Redis:
        """Make a connection to one of them."""
        return redis.Redis(port=server.port, decode_responses=True)

    def catch_up(self) -> None:
        """Wait until the replica has everything."""
        with self.on(self.primary) as primary:
            primary.incr("mark")  # WAIT looks at the writes of its own connection
            assert primary.wait(1, 10_000) == 1

    def fail(self) -> None:
        """Stop the primary; the Sentinel fails over within a second or two."""
        with self.on(self.sentinel) as sentinel:
            sentinel.execute_command("SENTINEL", "SET", "main", "down-after-milliseconds", 500)
        self.primary.stop()

    def is_primary(self, server: RedisServer) -> bool:
        """Say whether a server is the primary, as it sees itself."""
        with self.on(server) as connection:
            return bool(connection.info("replication")["role"] == "master")


@contextmanager
def watched(binary: Path, folder: Path) -> Iterator[Watched]:
    """Run a primary with a replica, watched by one Sentinel."""
    with ExitStack() as stack:
        primary = stack.enter_context(RedisServer(binary, ("--repl-diskless-sync-delay", "0")))
        replica = stack.enter_context(RedisServer(binary, ("--replicaof", "127.0.0.1", str(primary.port))))
        config = folder / "sentinel.conf"
        config.write_text(
            f"sentinel monitor main 127.0.0.1 {primary.port} 1\n"
            "sentinel down-after-milliseconds main 20000\n"
            "sentinel failover-timeout main 3000\n"
        )
        sentinel = stack.enter_context(Sentinel(binary, config))
        running = Watched(primary, replica, sentinel)
        with running.on(replica) as connection:
            wait_for(lambda: connection.info("replication")["master_link_status"] == "up")
        with running.on(sentinel) as connection:
            wait_for(lambda: "ok" in [known["master-link-status"] for known in connection.sentinel_slaves("main")])
        yield running


class Sentinel(RedisServer):
    """A Sentinel with a configuration file, which it rewrites."""

    def __init__(self, binary: Path, config: Path) -> None:
        super().__init__(binary)
        self._config = config

    def _command(self, folder: str) -> list[str]:
        return [
            str(self.binary),
            str(self._config),
            "--sentinel",
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            folder,
        ]
