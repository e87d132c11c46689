"""One connection to Redis, kept for as long as it works.

redis-py makes it (TCP, TLS or socket file, authentication, database, who is the primary). Once it stands, hiredis,
where it is installed, packs what is sent and parses what arrives right in the transport's callbacks: redis-py's
streams, pools and per-command records cost more than the round trip itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any, Final

from redis._parsers.base import BaseParser  # the one list of which error text is which exception
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ResponseError

try:
    import hiredis

    FAST = True
except ImportError:  # optional: the extra `fast`
    FAST = False

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from redis.asyncio.connection import AbstractConnection

Command = list[str | int]

_INCOMPLETE: Final = object()


class Wire:
    """A connection that sends commands and reads what comes back, in one task at a time each way.

    Args:
        dial: makes a connection that is ready for commands.
        hang_up: takes it back, once it is closed.
    """

    def __init__(
        self,
        dial: Callable[[], Awaitable[AbstractConnection]],
        hang_up: Callable[[AbstractConnection], Awaitable[None]],
    ) -> None:
        self._dial, self._hang_up = dial, hang_up
        self._connection: AbstractConnection | None = None
        self._replies: _Replies | None = None

    async def send(self, commands: Sequence[Command]) -> None:
        """Send commands, connecting first if need be.

        Raises:
            redis.exceptions.RedisError, OSError: the connection failed, or was refused.
        """
        connection = self._connection
        if connection is None:
            connection = self._connection = await self._dial()
            self._replies = _Replies.take_over(connection) if FAST else None
        if self._replies:
            self._replies.write(commands)
        else:
            await connection.send_packed_command(connection.pack_commands(commands))

    async def read(self) -> Any:
        """Wait for one reply or message; an error that a command got is returned, not raised.

        Raises:
            redis.exceptions.RedisError, OSError: the connection failed.
        """
        if self._replies:
            [reply] = await self._replies.read(1)
            return reply
        if self._connection is None:
            raise RedisConnectionError("not connected")
        try:
            return await self._connection.read_response(timeout=inf, push_request=True)
        except ResponseError as error:
            return error

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands and read their replies: one round trip. Raises as `send` and `read` do."""
        await self.send(commands)
        if self._replies:
            return await self._replies.read(len(commands))
        return [await self.read() for _ in commands]

    async def close(self) -> None:
        """Give the connection up; the next command makes a new one. Who is reading is told."""
        if self._replies:
            self._replies.abort()
            self._replies = None
        if (connection := self._connection) is not None:
            self._connection = None
            await connection.disconnect(nowait=True)
            await self._hang_up(connection)


class _Replies(asyncio.Protocol):
    """What a connection brings, parsed as it arrives."""

    def __init__(self, transport: asyncio.WriteTransport) -> None:
        self._transport = transport
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse,
            replyError=BaseParser.parse_error,
            encoding="utf-8",
            errors="replace",
            notEnoughData=_INCOMPLETE,
        )
        self._arrived: deque[Any] = deque()
        self._failure: Exception | None = None
        self._wanted = 0
        self._waiter: asyncio.Future[None] | None = None

    @classmethod
    def take_over(cls, connection: AbstractConnection) -> _Replies:
        """Read a connection from here on; it has no reply outstanding."""
        transport = connection._writer.transport  # type: ignore[union-attr]  # noqa: SLF001  redis-py has no public way
        replies = cls(transport)
        transport.set_protocol(replies)
        return replies

    def write(self, commands: Sequence[Command]) -> None:
        """Send commands."""
        if self._failure:
            raise self._failure
        self._transport.write(b"".join([hiredis.pack_command(tuple(command)) for command in commands]))  # type: ignore[arg-type]

    async def read(self, n: int) -> list[Any]:
        """Wait for the next n replies."""
        if len(self._arrived) < n:
            if self._failure:
                raise self._failure
            self._wanted, self._waiter = n, asyncio.get_running_loop().create_future()
            await self._waiter
        take = self._arrived.popleft
        return [take() for _ in range(n)]

    def abort(self) -> None:
        """Close the connection at once, whatever is under way."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse what has come, and wake the reader once it has all that it wants."""
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _INCOMPLETE:
                self._arrived.append(reply)
        except InvalidResponse as error:
            self._failed(error)
            self._transport.abort()
        if self._waiter and len(self._arrived) >= self._wanted:
            self._wake(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the reader."""
        self._failed(RedisConnectionError("Redis closed the connection" + (f": {exc}" if exc else "")))

    def _failed(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._wake(self._failure)

    def _wake(self, error: Exception | None) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter and not waiter.done():
            if error:
                waiter.set_exception(error)
            else:
                waiter.set_result(None)
