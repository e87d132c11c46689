"""Where a process hears of its grants: one connection to a server, subscribed to a channel for each semaphore."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, RedisClusterException, RedisError

from distributed_semaphore._upkeep import Backoff, Tasks
from distributed_semaphore._wire import Wire

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from redis.asyncio.connection import AbstractConnection

    from distributed_semaphore._courier import Courier
    from distributed_semaphore._places import Place
    from distributed_semaphore._session import Session


class Ear:
    """Listens on a server for what its sessions are told.

    Args:
        courier: hears that the connection failed or that a semaphore lives elsewhere.
        place: which server.
        dial: connects to it.
        failed: hears why it cannot listen.
    """

    def __init__(
        self,
        courier: Courier,
        place: Place,
        dial: Callable[[], Awaitable[AbstractConnection]],
        failed: Callable[[Exception], None],
    ) -> None:
        self.sessions: dict[str, Session] = {}
        """Those whose semaphores live there, by channel."""
        self._courier, self._failed = courier, failed
        self._wire = Wire(dial, place.hang_up)
        self._sharded = "s" if place.cluster else ""
        self._wanted = asyncio.Event()
        """Set once there is a channel to listen to."""
        self._subscribing = asyncio.Lock()
        self._listening = False
        self._listening_to: set[str] = set()
        """Channels that the present connection has subscribed to."""
        self._asked: deque[tuple[str, str]] = deque()
        """Command and channel of what has no answer yet: answers come in order, and a refusal names neither."""
        self._backoff = Backoff()
        self._tasks = Tasks()
        self._closed = False

    def start(self) -> None:
        """Begin to listen, as soon as there is a session."""
        self._tasks.keep(self._receive())

    def close(self) -> None:
        """Listen no longer."""
        self._closed = True
        self._wanted.set()
        self._tasks.keep(self._wire.close())

    async def break_off(self) -> None:
        """Give the connection up, and make another."""
        await self._wire.close()

    def listen(self, session: Session) -> None:
        """Listen for what a session is told; it hears when that begins."""
        channel = session.channel
        self.sessions[channel] = session
        if channel in self._listening_to:  # it was about to be given up
            session.on_subscribed()
        elif self._wanted.is_set():
            self._tasks.keep(self._subscribe_more())
        self._wanted.set()

    def forget(self, sessions: Iterable[Session]) -> None:
        """Listen for these sessions no longer."""
        channels = [session.channel for session in sessions if self.sessions.pop(session.channel, None)]
        if channels:
            self._tasks.keep(self._unlisten(channels))

    async def _receive(self) -> None:
        """Listen for grants; whenever a subscription is new, its session looks at the truth."""
        while not self._closed:
            await self._wanted.wait()
            if not self.sessions:
                self._wanted.clear()
                continue
            try:
                await self._listen_anew()
                await self._wire.listen(self._take_message)
            except (RedisError, RedisClusterException, OSError) as error:
                self._failed(error)
                for session in list(self.sessions.values()):
                    session.on_unsubscribed()
                async with self._subscribing:
                    self._listening = False
                    self._listening_to.clear()
                    self._asked.clear()
                    await self._wire.close()
                self._courier.trouble()
                await self._backoff.pause()

    def _take_message(self, message: Any) -> None:
        if isinstance(message, NoPermissionError) and self._asked:
            self._refused(*self._asked.popleft(), message)
            return
        if isinstance(message, RedisError):
            raise message
        self._backoff.succeeded()
        kind, channel, text = message
        if self._asked and self._asked[0] == (kind, channel):
            self._asked.popleft()
        if session := self.sessions.get(channel):
            match kind:
                case "message" | "smessage":
                    session.on_message(text)
                case "subscribe" | "ssubscribe":
                    session.on_subscribed()
                case "sunsubscribe":  # its slot has moved to another node
                    self._listening_to.discard(channel)
                    session.on_unsubscribed()
                    self._courier.trouble()

    def _refused(self, command: str, channel: str, error: NoPermissionError) -> None:
        """Tell the one session of a channel that this user may not listen to; the others go on."""
        self._listening_to.discard(channel)
        session = self.sessions.get(channel)
        if session and command == f"{self._sharded}subscribe":
            session.refuse(error)

    async def _listen_anew(self) -> None:
        async with self._subscribing:
            channels = list(self.sessions)
            await self._send("subscribe", channels)
            self._listening = True
            self._listening_to.update(channels)
        await self._subscribe_more()  # those that came meanwhile

    async def _subscribe_more(self) -> None:
        async with self._subscribing:
            more = [channel for channel in self.sessions if channel not in self._listening_to]
            if self._listening and more:
                self._listening_to.update(more)
                # A broken connection is noticed by the reader, which subscribes to everything anew.
                with contextlib.suppress(RedisError, OSError):
                    await self._send("subscribe", more)

    async def _send(self, what: str, channels: list[str]) -> None:
        command = self._sharded + what
        self._asked += [(command, channel) for channel in channels]
        await self._wire.send([[command.upper(), channel] for channel in channels])

    async def _unlisten(self, channels: list[str]) -> None:
        async with self._subscribing:
            gone = [channel for channel in channels if channel not in self.sessions]
            if gone and self._listening_to.issuperset(gone):
                self._listening_to.difference_update(gone)
                with contextlib.suppress(RedisError, OSError):
                    await self._send("unsubscribe", gone)
