"""The way to one Redis server: a connection for commands, one for messages of grants, and their upkeep.

What sessions want is collected while a round trip is under way and sent with the next one, so that a process needs two
connections to a server however many workers and semaphores it has.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
)

from distributed_semaphore._ear import Ear
from distributed_semaphore._errors import SemaphoreError, Unavailable
from distributed_semaphore._greeting import UnfitError, explain, greet
from distributed_semaphore._upkeep import Backoff, Tasks
from distributed_semaphore._wire import Wire
from distributed_semaphore.protocol.scripts import load_and_repeat

if TYPE_CHECKING:
    from collections.abc import Iterable

    from redis.asyncio.connection import AbstractConnection

    from distributed_semaphore._courier import Courier
    from distributed_semaphore._places import Place
    from distributed_semaphore._session import Session
    from distributed_semaphore._wire import Command
    from distributed_semaphore.protocol.scripts import Call, Script

log = logging.getLogger("distributed_semaphore")

#: A round trip may take this many seconds, or a third of the shortest lease in use, before its connection is given up.
ROUND_TRIP: Final = 2.0


class Trip:
    """One round trip: what each session sends with it."""

    __slots__ = ("commands", "due", "parts", "scripts", "sent")

    def __init__(self, parts: list[tuple[Session, list[Call]]], *, cluster: bool) -> None:
        self.parts = parts
        self.scripts: list[Script] = []
        self.commands: list[Command] = []
        for _, calls in parts:
            for call in calls:
                script = call.script.in_cluster if cluster else call.script
                self.scripts.append(script)
                self.commands.append(call.command(script))
        self.sent = time.monotonic()
        self.due = self.sent + min([ROUND_TRIP, *(session.standing.beat for session, _ in parts)])
        """When its connection is given up."""


class Link:
    """Carries the calls of some sessions to the server on which their semaphores live.

    Args:
        courier: hears that the connection failed or that a semaphore lives elsewhere, and that all is well again.
        place: which server, and how to connect to it.
    """

    def __init__(self, courier: Courier, place: Place) -> None:
        self.failure: str | None = None
        """Why the server cannot be used at the moment; None while it can."""
        self._courier = courier
        self._place = place
        self._shown_url = courier.shown_url
        self._commands = Wire(self._dial, place.hang_up)
        self._ear = Ear(courier, place, self._dial, self._failed)
        self._ready: dict[Session, None] = {}
        """Sessions that have something to send, in the order in which they said so."""
        self._under_way = False
        """Whether a round trip has been decided on, or goes on, or the pause after one that failed."""
        self._trip: Trip | None = None
        """The round trip whose replies are awaited."""
        self._alarm: asyncio.Handle | None = None
        self._backoff = Backoff()
        self._greeted = False
        self._tasks = Tasks()
        self._following: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Begin to carry calls and messages."""
        self._ear.start()
        self._following = asyncio.ensure_future(self._follow())

    def ready(self, session: Session) -> None:
        """Note that a session has something to send."""
        self._ready[session] = None
        if not self._under_way:
            self._under_way = True
            self._courier.call_soon(self._set_out)

    def listen(self, session: Session) -> None:
        """Listen for what a session is told; it hears when that begins."""
        self._ear.listen(session)

    def forget(self, sessions: Iterable[Session]) -> None:
        """Carry and listen for these sessions no longer."""
        for session in sessions:
            self._ready.pop(session, None)
        self._ear.forget(sessions)

    @property
    def used(self) -> bool:
        """Whether a session has business with the server."""
        return bool(self._ear.sessions or self._ready)

    def close(self) -> None:
        """Give the connections up; a round trip that is under way ends first."""
        self._closed = True
        if self._following:
            self._following.cancel()
        if not self._under_way:
            self._under_way = True
            self._go_on()
        self._ear.close()

    # Calls: one round trip at a time, and a pause after one that failed.

    def _set_out(self) -> None:
        """Send all that is wanted by now."""
        try:
            ready, self._ready = list(self._ready), {}
            # One that has just moved here may have a round trip over there that has not ended yet.
            parts = [(session, session.compose()) for session in ready if not session.in_flight]
            trip = Trip(parts, cluster=self._place.cluster)
            if not trip.commands:
                self._rest()
            elif self._commands.post(trip.commands, partial(self._heard, trip)):
                self._trip = trip
                if self._alarm is None:
                    self._alarm = self._courier.call_at(trip.due, self._look)
            else:
                self._tasks.keep(self._carry(trip))
        except Exception:
            log.exception("a round trip to Redis %s failed unexpectedly", self._shown_url)
            self._stumble()

    def _heard(self, trip: Trip, replies: list[Any] | Exception) -> None:
        if trip is not self._trip:
            return  # it took too long
        self._trip = None
        if isinstance(replies, Exception):
            self._tasks.keep(self._fail(trip, replies))
        elif any(isinstance(reply, NoScriptError) for reply in replies):
            self._tasks.keep(self._carry(trip, replies))
        else:
            self._take(trip, replies)

    def _look(self) -> None:
        """Give up the round trip under way if it takes too long; one timer does for many of them."""
        self._alarm, trip = None, self._trip
        if trip is None:
            return
        if time.monotonic() >= trip.due:
            self._trip = None
            self._tasks.keep(self._fail(trip, TimeoutError()))
        else:
            self._alarm = self._courier.call_at(trip.due, self._look)

    async def _carry(self, trip: Trip, replies: list[Any] | None = None) -> None:
        """Do what takes more than one exchange: connect first, or load scripts that the server has forgotten."""
        try:
            async with asyncio.timeout(trip.due - time.monotonic()):
                if replies is None:
                    replies = await self._commands.exchange(trip.commands)
                replies = await load_and_repeat(self._commands.exchange, trip.scripts, trip.commands, replies)
        except (RedisError, RedisClusterException, OSError) as error:
            await self._fail(trip, error)
        except Exception as error:
            log.exception("a round trip to Redis %s failed unexpectedly", self._shown_url)
            await self._fail(trip, error)
        else:
            self._take(trip, replies)

    def _take(self, trip: Trip, replies: list[Any]) -> None:
        """Tell each session what its calls have got."""
        try:
            if self.failure is not None:
                log.info("Redis %s is back", self._shown_url)
                self.failure = None
            answers = iter(replies)
            fine = [session.receive(trip.sent, list(islice(answers, len(calls)))) for session, calls in trip.parts]
        except Exception:
            log.exception("a round trip to Redis %s failed unexpectedly", self._shown_url)
            self._stumble()
            return
        if all(fine):
            self._backoff.succeeded()
            self._rest()
        elif any(isinstance(reply, ReadOnlyError) for reply in replies):
            self._tasks.keep(self._fail(None, ReadOnlyError("it is a replica now")))
        else:
            self._tasks.keep(self._pause())

    def _rest(self) -> None:
        self._courier.settled()
        self._go_on()

    def _go_on(self) -> None:
        if self._closed:
            self._tasks.keep(self._commands.close())
        elif self._ready:
            self._courier.call_soon(self._set_out)
        else:
            self._under_way = False

    async def _pause(self) -> None:
        """Wait before the next round trip, longer each time."""
        self._courier.trouble()
        await self._backoff.pause()
        self._go_on()

    async def _fail(self, trip: Trip | None, error: Exception) -> None:
        await self._give_up(error)
        for session, _ in trip.parts if trip else ():
            session.unsent()
        await self._pause()

    def _stumble(self) -> None:
        """Go on after a fault of ours: it must not end every renewal of the process."""
        for session in self._courier.sessions():
            if session.link is self and session.in_flight:
                session.unsent()
        self._tasks.keep(self._pause())

    async def _dial(self) -> AbstractConnection:
        """Connect; at first and after each failure, see whether the server will do: not in the middle of a hold."""
        try:
            connection = await self._place.dial()
        except NoPermissionError as error:  # of what an option of the address asks for
            raise UnfitError(explain(self._courier.user, error)) from error
        session = next((one for one in self._courier.sessions() if one.link is self), None)
        if session and not self._greeted:
            try:
                async with asyncio.timeout(ROUND_TRIP):
                    self._greeted = await greet(connection, session, cluster=self._place.cluster)
            except BaseException:
                await connection.disconnect(nowait=True)
                await self._place.hang_up(connection)
                raise
        return connection

    async def _follow(self) -> None:
        while True:
            await self._place.moved()
            await self._give_up(ReadOnlyError("another server is the primary now"))

    async def _give_up(self, error: Exception) -> None:
        """Make both connections anew: after a fail-over neither may lead to where the other does."""
        await self._commands.close()
        await self._ear.break_off()
        self._failed(error)

    def _failed(self, error: Exception) -> None:
        said = str(error) or type(error).__name__
        if self.failure is None:
            log.warning("Redis %s cannot be used: %s; trying again", self._shown_url, said)
        self.failure, self._greeted = said, False
        if isinstance(error, AuthenticationError | UnfitError):
            self.refuse_all(Unavailable(f"Redis {self._shown_url} refuses this client: {said}"))

    def refuse_all(self, error: SemaphoreError) -> None:
        """Answer every request with an error."""
        for session in list(self._ear.sessions.values()):
            session.refuse_all(error)
