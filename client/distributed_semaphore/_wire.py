"""One connection to Redis, kept for as long as it works.

redis-py makes it (TCP, TLS or socket file, authentication, database) and reads replies; commands are packed and written
here, because its pipelines, pools and per-command records cost more than the round trip itself.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from redis.asyncio import Redis
    from redis.asyncio.connection import AbstractConnection

Command = list[str | int]


class Wire:
    """A connection that sends commands and reads what comes back, in one task at a time each way."""

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._connection: AbstractConnection | None = None

    async def send(self, commands: Sequence[Command]) -> None:
        """Send commands, connecting first if need be.

        Raises:
            redis.exceptions.RedisError, OSError: the connection failed, or was refused.
        """
        connection = self._connection
        if connection is None:
            connection = self._connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        await connection.send_packed_command(_packed(connection, commands))

    async def read(self) -> Any:
        """Wait for one reply or message; an error that a command got is returned, not raised.

        Raises:
            redis.exceptions.RedisError, OSError: the connection failed.
        """
        if self._connection is None:
            raise ConnectionError("not connected")
        try:
            return await self._connection.read_response(timeout=inf, push_request=True)
        except ResponseError as error:
            return error

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands and read their replies: one round trip. Raises as `send` and `read` do."""
        await self.send(commands)
        return [await self.read() for _ in commands]

    async def close(self) -> None:
        """Give the connection up; the next command makes a new one."""
        if (connection := self._connection) is not None:
            self._connection = None
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)


def _packer() -> Callable[[tuple[Any, ...]], bytes] | None:
    try:
        from hiredis import pack_command  # noqa: PLC0415  optional: the extra `fast`
    except ImportError:
        return None
    return pack_command


_pack = _packer()


def _packed(connection: AbstractConnection, commands: Sequence[Command]) -> list[bytes]:
    if _pack is None:
        return list(connection.pack_commands(commands))
    return [_pack(tuple(command)) for command in commands]
