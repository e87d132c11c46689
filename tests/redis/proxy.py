"""A TCP proxy on the loopback interface that does to a connection what networks do."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

#: A message of a subscription, as protocol 2 and 3 frame it.
PUSH = re.compile(rb"[*>]3\r\n\$7\r\nmessage\r\n\$\d+\r\n[^\r]*\r\n\$\d+\r\n[^\r]*\r\n")
CHUNK = 1 << 16


class Proxy:
    """Passes bytes between clients and one server, except where a test says otherwise; runs in the test's event loop.

    Attributes:
        refusing: whether new connections are closed at once.
        drop_share: of the messages to subscribers, how many never arrive, 0 to 1; `dropped` counts them.
        on_chunk: called with each piece of data before it is passed on, whatever its direction.
    """

    def __init__(self, port: int, seed: int = 1) -> None:
        self._server_port = port
        self._random = random.Random(seed)
        self._connections: set[Connection] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._listener: asyncio.Server | None = None
        self._lose_reply_to = b""
        self.refusing = False
        self.drop_share = 0.0
        self.dropped = 0
        self.lost_replies = 0
        self.on_chunk: Callable[[bytes], None] = lambda _data: None
        self.url = ""

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}/0"
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._listener is not None
        self._listener.close()
        self.refusing = True
        self._open.set()
        self.cut()
        while self._connections:
            await asyncio.sleep(0.005)

    @property
    def idle(self) -> bool:
        """Whether no connection goes through it."""
        return not self._connections

    def cut(self) -> None:
        """Reset every connection."""
        for connection in self._connections:
            connection.abort()

    def swallow(self) -> None:
        """Let nothing through, with the connections open, until `deliver`: a black hole."""
        self._open.clear()

    def deliver(self) -> None:
        """Let through what was swallowed, and what comes."""
        self._open.set()

    def lose_reply(self, to: bytes) -> None:
        """Let the server execute the next request that contains these bytes, but lose its reply with the connection."""
        self._lose_reply_to = to

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        with contextlib.suppress(OSError):
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
            connection = Connection(writer, server_writer)
            self._connections.add(connection)
            try:
                await asyncio.gather(
                    self._pass_on(reader, server_writer, connection, self._request),
                    self._pass_on(server_reader, writer, connection, self._reply),
                )
            finally:
                self._connections.discard(connection)
        writer.transport.abort()

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        connection: Connection,
        change: Callable[[bytes, Connection], bytes],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._open.wait()
                self.on_chunk(data)
                writer.write(change(data, connection))
                await writer.drain()
        connection.abort()

    def _request(self, data: bytes, connection: Connection) -> bytes:
        if self._lose_reply_to and self._lose_reply_to in data:
            self._lose_reply_to = b""
            connection.loses_reply = True
        return data

    def _reply(self, data: bytes, connection: Connection) -> bytes:
        if connection.loses_reply:
            self.lost_replies += 1
            connection.abort()
            return b""
        return PUSH.sub(self._maybe_drop, data) if self.drop_share else data

    def _maybe_drop(self, push: re.Match[bytes]) -> bytes:
        if self._random.random() >= self.drop_share:
            return push[0]
        self.dropped += 1
        return b""


class Connection:
    """The two halves of one connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._halves = client, server
        self.loses_reply = False

    def abort(self) -> None:
        """Reset both halves."""
        for half in self._halves:
            half.transport.abort()
