"""The way to one Redis server: a connection for commands, one for messages of grants, and their upkeep.

What sessions want is collected while a round trip is under way and sent with the next one, so that a process needs two
connections to a server however many workers and semaphores it has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
)

from distributed_semaphore._errors import SemaphoreError, Unavailable
from distributed_semaphore._wire import Wire
from distributed_semaphore.protocol.scripts import Call, run_over

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from distributed_semaphore._courier import Courier
    from distributed_semaphore._places import Place
    from distributed_semaphore._session import Session

log = logging.getLogger("distributed_semaphore")
_random = random.Random()  # noqa: S311  one of our own: a program that has seeded Python's gets the numbers it expects

#: A round trip may take this many seconds, or a third of the shortest lease in use, before its connection is given up.
ROUND_TRIP: Final = 2.0
FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 1.0
#: The oldest Redis whose scripts can do what ours do.
OLDEST: Final = (6, 2)


class Link:
    """Carries the calls of some sessions to the server on which their semaphores live.

    Args:
        courier: hears that the connection failed or that a semaphore lives elsewhere, and that all is well again.
        place: which server, and how to connect to it.
    """

    def __init__(self, courier: Courier, place: Place) -> None:
        self.failure: str | None = None
        """Why the server cannot be used at the moment; None while it can."""
        self.sessions: dict[str, Session] = {}
        """Those whose semaphores live there, by channel."""
        self._courier = courier
        self._place = place
        self._shown_url = courier.shown_url
        self._commands = Wire(place.dial, place.hang_up)
        self._messages = Wire(place.dial, place.hang_up)
        self._sharded = "S" if place.cluster else ""
        self._ready: dict[Session, None] = {}
        """Sessions that have something to send, in the order in which they said so."""
        self._wake = asyncio.Event()
        self._wanted = asyncio.Event()
        """Set once there is a channel to listen to."""
        self._subscribing = asyncio.Lock()
        self._listening = False
        self._listening_to: set[str] = set()
        """Channels that the present connection has subscribed to."""
        self._asked_for_version = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def start(self) -> None:
        """Begin to carry calls and messages."""
        self._keep(self._send())
        self._keep(self._receive())

    def ready(self, session: Session) -> None:
        """Note that a session has something to send."""
        self._ready[session] = None
        self._wake.set()

    def listen(self, session: Session) -> None:
        """Listen for what a session is told; it hears when that begins."""
        channel = session.channel
        self.sessions[channel] = session
        if channel in self._listening_to:  # it was about to be given up
            session.on_subscribed()
        elif self._wanted.is_set():
            self._keep(self._subscribe_more())
        self._wanted.set()

    def forget(self, sessions: Iterable[Session]) -> None:
        """Listen for these sessions no longer."""
        channels = []
        for session in sessions:
            self._ready.pop(session, None)
            if self.sessions.pop(session.channel, None):
                channels.append(session.channel)
        if channels:
            self._keep(self._unlisten(channels))

    @property
    def used(self) -> bool:
        """Whether a session has business with the server."""
        return bool(self.sessions or self._ready)

    def close(self) -> None:
        """Give the connections up; a round trip that is under way ends first."""
        self._closed = True
        self._wake.set()
        self._wanted.set()
        self._keep(self._messages.close())

    # Calls.

    async def _send(self) -> None:
        pause = FIRST_PAUSE
        while not self._closed:
            await self._wake.wait()
            self._wake.clear()
            try:
                fine = await self._round_trip()
            except Exception:  # a fault of ours must not end every renewal of the process
                log.exception("a round trip to Redis %s failed unexpectedly", self._shown_url)
                fine = False
            if fine:
                pause = FIRST_PAUSE
                self._courier.settled()
            else:
                self._courier.trouble()
                await asyncio.sleep(pause * _random.uniform(0.5, 1.0))
                pause = min(2 * pause, LONGEST_PAUSE)
                self._wake.set()
        await self._commands.close()

    async def _round_trip(self) -> bool:
        sessions, self._ready = list(self._ready), {}
        calls: list[Call] = []
        parts: list[tuple[Session, int]] = []
        for session in sessions:
            if session.in_flight:
                continue  # it has just moved here, and its last round trip over there has not ended yet
            composed = session.compose()
            parts.append((session, len(composed)))
            calls += composed
        if not calls:
            return True
        sent = time.monotonic()
        patience = min(ROUND_TRIP, *(session.standing.beat for session, _ in parts))
        try:
            async with asyncio.timeout(patience):
                if not self._asked_for_version:
                    await self._ask_for_version()
                replies = await run_over(self._commands.exchange, calls, cluster=self._place.cluster)
        except (RedisError, RedisClusterException, OSError) as error:
            await self._give_up(error)
            for session, _ in parts:
                session.unsent()
            return False
        if self.failure is not None:
            log.info("Redis %s is back", self._shown_url)
            self.failure = None
        answers = iter(replies)
        fine = [session.receive(sent, list(islice(answers, n))) for session, n in parts]
        if all(fine):
            return True
        if any(isinstance(reply, ReadOnlyError) for reply in replies):
            await self._give_up(ReadOnlyError("it is a replica now"))
        return False

    async def _ask_for_version(self) -> None:
        """Refuse a server that is too old at once, rather than in the middle of a hold."""
        [reply] = await self._commands.exchange([["HELLO"]])
        words = [*chain.from_iterable(reply.items())] if isinstance(reply, dict) else reply
        if isinstance(words, list) and "version" in words:  # some servers and users may not say it
            version = words[words.index("version") + 1]
            if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
                raise _TooOldError(f"it is version {version}, and 6.2 is the oldest that works")
        self._asked_for_version = True

    async def _give_up(self, error: Exception) -> None:
        """Make both connections anew: after a fail-over neither may lead to where the other does."""
        await self._commands.close()
        await self._messages.close()
        self._failed(error)

    def _failed(self, error: Exception) -> None:
        said = str(error) or type(error).__name__
        if self.failure is None:
            log.warning("Redis %s cannot be used: %s; trying again", self._shown_url, said)
        self.failure = said
        if isinstance(error, AuthenticationError | NoPermissionError | _TooOldError):
            self.refuse_all(Unavailable(f"Redis {self._shown_url} refuses this client: {said}"))

    def refuse_all(self, error: SemaphoreError) -> None:
        """Answer every request with an error."""
        for session in list(self.sessions.values()):
            session.refuse_all(error)

    # Messages.

    async def _receive(self) -> None:
        """Listen for grants; whenever a subscription is new, its session looks at the truth."""
        pause = FIRST_PAUSE
        while not self._closed:
            await self._wanted.wait()
            if not self.sessions:
                self._wanted.clear()
                continue
            try:
                await self._listen_anew()
                while True:
                    self._take_message(await self._messages.read())
                    pause = FIRST_PAUSE
            except (RedisError, RedisClusterException, OSError) as error:
                self._failed(error)
                for session in list(self.sessions.values()):
                    session.on_unsubscribed()
                async with self._subscribing:
                    self._listening = False
                    self._listening_to.clear()
                    await self._messages.close()
                self._courier.trouble()
                await asyncio.sleep(pause * _random.uniform(0.5, 1.0))
                pause = min(2 * pause, LONGEST_PAUSE)

    def _take_message(self, message: Any) -> None:
        if isinstance(message, RedisError):
            raise message
        kind, channel, text = message
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

    async def _listen_anew(self) -> None:
        async with self._subscribing:
            channels = list(self.sessions)
            await self._messages.send(self._subscriptions(channels))
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
                    await self._messages.send(self._subscriptions(more))

    def _subscriptions(self, channels: list[str]) -> list[list[str | int]]:
        if self._place.cluster:  # channels of one command must share a slot
            return [[f"{self._sharded}SUBSCRIBE", channel] for channel in channels]
        return [["SUBSCRIBE", *channels]]

    async def _unlisten(self, channels: list[str]) -> None:
        async with self._subscribing:
            gone = [channel for channel in channels if channel not in self.sessions]
            if gone and self._listening_to.issuperset(gone):
                self._listening_to.difference_update(gone)
                with contextlib.suppress(RedisError, OSError):
                    await self._messages.send([[f"{self._sharded}UNSUBSCRIBE", channel] for channel in gone])

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Hold a task for as long as it runs: the loop itself only remembers it weakly."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _TooOldError(ResponseError):
    """The server lacks what the scripts need."""
