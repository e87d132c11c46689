"""One connection to Redis, kept for as long as it works.

redis-py makes it (TCP, TLS or socket file, authentication, database, who is the primary). Once it stands, hiredis,
where it is installed, packs what is sent and parses what arrives right in the transport's callbacks: redis-py's
streams, pools and per-command records cost more than the round trip itself.
"""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, NoReturn

from redis._parsers.base import BaseParser  # the one list of which error text is which exception
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, RedisError, ResponseError

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

    def post(self, commands: Sequence[Command], heard: Callable[[list[Any] | Exception], None]) -> bool:
        """Send commands, if that needs no waiting; the callback hears their replies, or why there are none.

        No task has to be woken for it, which costs as much as what is sent. Else, nothing is done: use `exchange`.
        """
        if self._replies is None or self._replies.failure:
            return False
        self._replies.write(commands)
        self._replies.expect(len(commands), heard)
        return True

    async def listen(self, heard: Callable[[Any], None]) -> None:
        """Pass on each message as it arrives, until the connection fails.

        Raises:
            redis.exceptions.RedisError, OSError: it has failed, or the callback raised this.
        """
        if self._replies:
            await self._replies.pass_on(heard)
        while True:
            heard(await self._read())

    async def _read(self) -> Any:
        """Wait for one reply or message; an error that a command got is returned, not raised."""
        if self._connection is None:
            raise RedisConnectionError("not connected")
        try:
            return await self._connection.read_response(timeout=inf, push_request=True)
        except ResponseError as error:
            return error

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands and read their replies, or the errors that they got: one round trip. Raises as `send` does."""
        await self.send(commands)
        if self._replies:
            return await self._replies.read(len(commands))
        return [await self._read() for _ in commands]

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
        self.failure: Exception | None = None
        """Why nothing comes any more; None while the connection stands."""
        self._arrived: list[Any] = []
        self._wanted = 0
        self._heard: Callable[[list[Any] | Exception], None] | None = None
        """Hears of that many replies at once, or of the failure."""
        self._message: Callable[[Any], None] | None = None
        """Hears of each on its own, as it comes."""

    @classmethod
    def take_over(cls, connection: AbstractConnection) -> _Replies:
        """Read a connection from here on; it has no reply outstanding."""
        transport = connection._writer.transport  # type: ignore[union-attr]  # noqa: SLF001  redis-py has no public way
        replies = cls(transport)
        transport.set_protocol(replies)
        return replies

    def write(self, commands: Sequence[Command]) -> None:
        """Send commands."""
        if self.failure:
            raise self.failure
        self._transport.write(b"".join([hiredis.pack_command(tuple(command)) for command in commands]))  # type: ignore[arg-type]

    def expect(self, n: int, heard: Callable[[list[Any] | Exception], None]) -> None:
        """Have the next n replies, or the failure, told; at once if they have arrived."""
        self._wanted, self._heard = n, heard
        if self.failure or len(self._arrived) >= n:
            self._tell()

    async def read(self, n: int) -> list[Any]:
        """Wait for the next n replies."""
        answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self.expect(n, partial(_settle, answer))
        return await answer

    async def pass_on(self, heard: Callable[[Any], None]) -> NoReturn:
        """Have each message told as it comes; ends with the error that ends the connection."""
        for message in self._arrived:
            heard(message)
        self._arrived.clear()
        self._message = heard
        while True:
            await self.read(1)

    def abort(self) -> None:
        """Close the connection at once, whatever is under way."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse what has come, and pass it on: messages one by one, replies once all that are wanted are there."""
        self._reader.feed(data)
        take = self._message or self._arrived.append
        try:
            while (reply := self._reader.gets()) is not _INCOMPLETE:
                take(reply)
        except RedisError as error:  # what it says makes no sense, or is that it ends
            self._failed(error)
            self._transport.abort()
        if self._heard and len(self._arrived) >= self._wanted:
            self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the reader."""
        self._failed(RedisConnectionError("Redis closed the connection" + (f": {exc}" if exc else "")))

    def _failed(self, error: Exception) -> None:
        self.failure = self.failure or error
        self._tell()

    def _tell(self) -> None:
        heard, self._heard = self._heard, None
        if heard is None:
            return
        if len(self._arrived) >= self._wanted:
            replies, self._arrived = self._arrived[: self._wanted], self._arrived[self._wanted :]
            heard(replies)
        else:
            heard(self.failure or RedisConnectionError("not connected"))


def _settle(answer: asyncio.Future[list[Any]], outcome: list[Any] | Exception) -> None:
    if answer.done():  # cancelled: it took too long
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
