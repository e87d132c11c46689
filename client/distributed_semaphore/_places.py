"""Where semaphores live: on one server, or each on the cluster node that its hash tag says."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, cast

from redis.asyncio import RedisCluster
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
    SlotNotCoveredError,
)

from distributed_semaphore._errors import Unavailable
from distributed_semaphore._link import Link

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis.asyncio import Redis
    from redis.asyncio.connection import AbstractConnection, Connection

    from distributed_semaphore._courier import Courier
    from distributed_semaphore._session import Session
    from distributed_semaphore.protocol.address import AnyRedis

log = logging.getLogger("distributed_semaphore")

#: Seconds between two looks at a cluster that is not in order, at first and at most.
FIRST_LOOK: Final = 0.05
LAST_LOOK: Final = 1.0
#: Seconds after which Sentinel is asked who the primary is, though it has told of no switch.
LOOK_ANYWAY: Final = 30.0


class Place(Protocol):
    """A server, and how to connect to it."""

    cluster: bool

    async def dial(self) -> AbstractConnection:
        """Make a connection that is ready for commands."""

    async def hang_up(self, connection: AbstractConnection) -> None:
        """Take back a connection that was closed."""

    async def moved(self) -> None:
        """Wait until its connections lead to the wrong server, which may not know that itself."""


class Server:
    """A single server."""

    cluster = False

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool

    async def dial(self) -> AbstractConnection:
        """Make a connection that is ready for commands."""
        connection: AbstractConnection = await self._pool.get_connection()
        return connection

    async def hang_up(self, connection: AbstractConnection) -> None:
        """Take back a connection that was closed."""
        await self._pool.release(connection)

    async def moved(self) -> None:
        """Wait for ever: where it is, it stays."""
        await asyncio.get_running_loop().create_future()


class Primary(Server):
    """Whichever server Sentinel says is the primary."""

    async def moved(self) -> None:
        """Wait until Sentinel has made another server the primary.

        One that was replaced in a planned switch goes on granting, for itself, until Sentinel turns to it 10 s later.
        """
        pool = cast("SentinelConnectionPool", self._pool)
        while True:
            for sentinel in pool.sentinel_manager.sentinels:
                with suppress(RedisError, OSError):
                    async with sentinel.pubsub() as messages:
                        await messages.subscribe("+switch-master")
                        while True:
                            await messages.get_message(timeout=LOOK_ANYWAY)
                            known = pool.master_address
                            if known and await pool.get_master_address() != known:
                                return
            await asyncio.sleep(LAST_LOOK)


class Node:
    """One node of a cluster."""

    cluster = True

    def __init__(self, redis: RedisCluster, name: str) -> None:
        self._redis, self._name = redis, name

    async def dial(self) -> AbstractConnection:
        """Make a connection that is ready for commands."""
        node = self._redis.get_node(node_name=self._name)
        if node is None:
            raise ConnectionError(f"{self._name} has left the cluster")
        connection = node.acquire_connection()
        try:
            await connection.connect()
        except BaseException:
            node.release(connection)
            raise
        return connection

    async def hang_up(self, connection: AbstractConnection) -> None:
        """Take back a connection that was closed."""
        if node := self._redis.get_node(node_name=self._name):
            node.release(cast("Connection", connection))

    async def moved(self) -> None:
        """Wait for ever: what is asked of the wrong node is answered with the right one."""
        await asyncio.get_running_loop().create_future()


class Nodes:
    """The nodes of a cluster, with a link to each that has a semaphore of ours.

    It stands in for the link of a session whose node is not known yet.
    """

    def __init__(self, courier: Courier, redis: RedisCluster) -> None:
        self.failure: str | None = None
        """Why the cluster cannot be used at the moment; None while it can."""
        self._redis, self._courier = redis, courier
        self._links: dict[str, Link] = {}
        self._doubted = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look for nodes."""
        self._looking = asyncio.ensure_future(self._look())
        self.doubt()

    def doubt(self) -> None:
        """Look again at which node has what."""
        self._doubted.set()

    def ready(self, session: Session) -> None:
        """Find a session's node: only then it can send."""
        self._house([session])

    def listen(self, session: Session) -> None:
        """Find a session's node: only then it can listen."""
        self._house([session])

    def forget(self, sessions: Iterable[Session]) -> None:
        """Nothing is known of sessions without a node."""

    async def _look(self) -> None:
        pause = FIRST_LOOK
        while True:
            await self._doubted.wait()
            self._doubted.clear()
            try:
                await self._redis.nodes_manager.initialize()
            except (RedisError, RedisClusterException, OSError) as error:
                self._failed(error)
            else:
                self.failure = None
            self._house(self._courier.sessions())
            if self.failure or any(link.failure for link in self._links.values()):
                self._doubted.set()
                pause = min(2 * pause, LAST_LOOK)
            else:
                pause = FIRST_LOOK
            await asyncio.sleep(pause)

    def _failed(self, error: Exception) -> None:
        cause = error.__cause__ or error
        said = str(cause) or type(cause).__name__
        if self.failure is None:
            log.warning("Redis %s cannot be used: %s; trying again", self._courier.shown_url, said)
        self.failure = said
        for session in self._courier.sessions():
            if session.link is self:  # what it wants cannot even be sent
                session.compose()
                session.unsent()
        if isinstance(cause, AuthenticationError | NoPermissionError):
            for session in self._courier.sessions():
                session.refuse_all(Unavailable(f"Redis {self._courier.shown_url} refuses this client: {said}"))

    def _house(self, sessions: Iterable[Session]) -> None:
        """Move each session to the link of the node that has its slot."""
        for session in sessions:
            try:
                node = self._redis.get_node_from_key(session.keys.prefix)
            except SlotNotCoveredError:
                node = None
            if node is None:
                self.doubt()
                continue
            name = node.name
            if (link := self._links.get(name)) is None:
                link = self._links[name] = Link(self._courier, Node(self._redis, name))
                link.start()
            if session.link is not link:
                session.link.forget([session])
                session.move_to(link)
        for name, link in list(self._links.items()):
            if link.failure and not link.used:
                del self._links[name]
                link.close()


def home(courier: Courier, redis: AnyRedis) -> Link | Nodes:
    """Give the way to what an address names."""
    if isinstance(redis, RedisCluster):
        return Nodes(courier, redis)
    watched = isinstance(redis.connection_pool, SentinelConnectionPool)
    return Link(courier, Primary(redis) if watched else Server(redis))
