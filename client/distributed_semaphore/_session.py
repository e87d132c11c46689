"""The standing of this process with one semaphore: its requests, its slots, and its heartbeat.

Everything here runs in the I/O thread. Times are the monotonic clock's, in seconds; what the server says in its own
time is mapped so that a lease is believed to end early rather than late.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from distributed_semaphore._errors import AcquireTimeout, SemaphoreError, Unavailable, WouldWait
from distributed_semaphore._greeting import explain, is_refusal
from distributed_semaphore._identity import identity
from distributed_semaphore._request import Request, Slot
from distributed_semaphore._standing import GRANTED, NOT_CONFIGURED, QUEUED, TOO_HEAVY, Standing
from distributed_semaphore.protocol.keys import Keys
from distributed_semaphore.protocol.scripts import APPLY, RENEW, Call, declare_call, split_applied

log = logging.getLogger("distributed_semaphore")

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from distributed_semaphore._courier import Courier
    from distributed_semaphore._link import Link
    from distributed_semaphore._places import Nodes
    from distributed_semaphore.protocol.config import Config

#: The longest time between two heartbeats of a process that only holds; seconds.
LONGEST_BEAT: Final = 5.0
#: Requests of one call, and slots of one renewal.
BATCH: Final = 500
#: Waiting tokens that a renewal names.
VOUCHED: Final = 16
#: Seconds for which a config that has just vanished is waited for, and between two looks.
VANISHED_PATIENCE: Final = 10.0
LOOK_AGAIN: Final = 0.5
#: Seconds after which a session that nobody uses is forgotten.
IDLE: Final = 60.0


@dataclass(slots=True)
class Query:
    """A read-only call, and who hears of its reply."""

    call: Call
    done: Callable[[Any], None]
    early: bool
    attempts: int = 2

    def heard(self, _sent: float, reply: Any) -> None:
        """Pass the reply on."""
        self.done(reply)


class Session:
    """One semaphore, as this process stands with it."""

    def __init__(self, courier: Courier, name: str, link: Link | Nodes) -> None:
        self.name = name
        self.link = link
        """The way to the server on which it lives; its cluster while that is not known."""
        self.keys = Keys.of(name)
        self.waiting: dict[str, Request] = {}
        """Requests that have neither a slot nor an answer, in the order in which they were made."""
        self.held: dict[str, Slot] = {}
        self.courier = courier
        self.channel = self.keys.channel(courier.client)
        self.retired = False
        """Whether the courier has forgotten it, for lack of use; a new one stands in its place then."""
        self.standing = Standing(name)
        self._own_config: Config | None = None
        """What a client without an operator declares."""
        self._own_cap = 0
        self._number = 0
        self._prioritised = False
        self._parked: deque[Request] = deque()
        """Requests that the local semaphore keeps back."""
        self._asking: dict[str, Request] = {}
        self._giving_back: dict[str, Callable[[int], None] | None] = {}
        self._queries: list[Query] = []
        self._in_flight: list[tuple[Callable[[float, Any], None], Callable[[], None]]] = []
        """What to do with each reply of the round trip under way, and what to do if there is none."""
        self._subscribed = False
        self._declared = False
        self._introduced = False
        self._last_beat = -inf
        self._beat_now = False
        self._unconfirmed = 0
        self._first_deadline = inf
        """No slot of this process is lost before."""
        self._timer: asyncio.Handle | None = None
        self._timer_at = inf
        self._repeating: asyncio.Handle | None = None
        """The next attempt at what Redis has refused."""
        self._said = ""
        """Its last refusal."""

    # What callers want.

    def ask(self, request: Request) -> None:
        """Send a request, or keep it back while this process has as many as it may."""
        if self.retired:
            self.courier.session(self.name, self._own_config, self._own_cap).ask(request)
            return
        cap = self.cap
        if len(self.waiting) + len(self.held) >= cap:
            if request.may_wait:
                self._parked.append(request)
            else:
                request.finish(WouldWait(self.at_cap))
            return
        self._prioritised = self._prioritised or request.priority != 0
        self._number += 1
        request.token = f"{self.courier.client}.{self._number}.{request.weight}"
        self.waiting[request.token] = self._asking[request.token] = request
        if self._subscribed:
            self.link.ready(self)
        else:
            self.link.listen(self)

    def abandon(self, request: Request) -> None:
        """Forget a request whose caller is gone; if it was granted meanwhile, the slot goes back."""
        if self.retired:
            self.courier.session(self.name).abandon(request)
            return
        if self.waiting.pop(request.token, None):
            self._forget(request)
        elif slot := self.held.get(request.token):
            self.release(slot)
        elif request in self._parked:
            self._parked.remove(request)

    def release(self, slot: Slot, done: Callable[[int], None] | None = None) -> None:
        """Give a slot back; `done` hears 1 if the server knew it, 0 if not."""
        if self.held.pop(slot.token, None):
            self._give_back(slot.token, done)
            self._unpark()
        elif done:
            done(0)

    def query(self, call: Call, done: Callable[[Any], None], *, early: bool = False) -> None:
        """Run a read-only call with the next round trip; `done` hears its reply or the exception.

        It sees what was released and asked for before, or, if it is `early`, the semaphore as it was until then.
        """
        self._queries.append(Query(call, done, early))
        self.link.ready(self)

    def move_to(self, link: Link) -> None:
        """Go on with another server: the semaphore lives there now."""
        self.link = link
        if self._subscribed or self.waiting or self.held:
            self.on_unsubscribed()
            link.listen(self)
        link.ready(self)

    def leave(self) -> None:
        """Give back everything: the process ends."""
        self._parked.clear()
        for request in list(self.waiting.values()):
            self.abandon(request)
        for slot in list(self.held.values()):
            self.release(slot)

    def refuse_all(self, error: SemaphoreError) -> None:
        """Answer every request with an error."""
        for request in [*self.waiting.values(), *self._parked]:
            self._refuse(request, error)
        self._parked.clear()

    def refuse(self, error: RedisError) -> None:
        """Answer every request with what Redis says of the semaphore: that this user may not use it, or a fault."""
        self._said = explain(self.courier.user, error, self.keys)
        where = self.courier.shown_url
        self.refuse_all(Unavailable(f"Redis {where} refuses a call on {self.name}: {self._said}"))

    def declare(self, config: Config | None, cap: int) -> None:
        """Take over what a semaphore object of this process says of itself."""
        if config and config != self._own_config:
            self._own_config, self._declared = config, False
        if cap:
            self._own_cap = cap

    @property
    def cap(self) -> float:
        """How many slots this process may hold or await at once."""
        return min(filter(None, (self.standing.cap, self._own_cap)), default=inf)

    @property
    def at_cap(self) -> str:
        """Say that the local limit keeps a request back."""
        return f"this process holds or awaits {self.cap} slots of {self.name}, as many as its perProcessLimit allows"

    @property
    def declares(self) -> bool:
        """Whether this process declares the semaphore, for want of an operator."""
        return self._own_config is not None

    @property
    def waiting_here(self) -> int:
        """How many requests of this process have no slot yet."""
        return len(self.waiting) + len(self._parked)

    @property
    def idle(self) -> bool:
        """Whether nothing is held, wanted or owed, and has not been for a while."""
        used = self.waiting or self._parked or self.held or self._asking or self._queries or self.owes
        return not used and time.monotonic() - self._last_beat > IDLE

    @property
    def failure(self) -> str | None:
        """Why its server cannot be used at the moment; None while it can."""
        return self.link.failure

    @property
    def in_flight(self) -> bool:
        """Whether a round trip is under way."""
        return bool(self._in_flight)

    @property
    def owes(self) -> bool:
        """Whether the server has yet to hear of something given back."""
        return bool(self._giving_back or self._in_flight)

    # What is sent.

    def compose(self) -> list[Call]:
        """Make the calls of the next round trip; exactly one of `receive` and `unsent` follows."""
        calls: list[Call] = []
        now = time.monotonic()
        queries, self._queries = self._queries, []
        calls += self._compose_queries(query for query in queries if query.early)
        if self._own_config and not self._declared:
            # Once seen and gone again, it may have been held: its holders get the time to put their slots back.
            reclaim = self._own_config.lease_ms if self.standing.limit is not None else 0
            calls.append(declare_call(self.keys, self._own_config, reclaim))
            self._in_flight.append((self._on_declared, _nothing))
        if (self.waiting or self.held) and (self._beat_now or now >= self._next_beat):
            calls += self._compose_renewals(now)
        if self._giving_back or (self._asking and self._subscribed):
            calls.append(self._compose_apply())
        calls += self._compose_queries(query for query in queries if not query.early)
        return calls

    def _compose_queries(self, queries: Iterable[Query]) -> Iterable[Call]:
        for query in queries:
            self._in_flight.append((query.heard, partial(self._ask_again, query)))
            yield query.call

    def _ask_again(self, query: Query) -> None:
        """Repeat a query once: the first attempt may find a connection that broke while nobody used it."""
        query.attempts -= 1
        if query.attempts:
            self._queries.append(query)
            self.link.ready(self)
        else:
            query.done(RedisError(self.failure or self._said))

    def _compose_renewals(self, now: float) -> Iterable[Call]:
        self._last_beat, self._beat_now = now, False
        held = iter(list(self.held.values()))
        oldest = [token for token in self._next_in_line() if token not in self._asking]
        fresh, self._unconfirmed = self._unconfirmed, 0
        while True:
            slots = list(islice(held, BATCH))
            introduction = "" if self._introduced else identity()
            handler = partial(self._on_renewed, slots, bool(introduction))
            self._in_flight.append((handler, partial(self._not_renewed, fresh)))
            claims = [word for slot in slots for word in (slot.token, slot.fence, slot.expiry_ms)]
            yield Call(RENEW, self.keys, [self.courier.client, introduction, len(slots), *claims, *oldest])
            oldest, fresh = [], 0
            if len(slots) < BATCH:
                return

    def _next_in_line(self) -> Iterable[str]:
        """Name the requests of this process that are granted before its others."""
        if not self._prioritised:
            return islice(self.waiting, VOUCHED)
        first = nsmallest(
            VOUCHED, self.waiting.values(), key=lambda request: (-request.priority, request.ticket or inf)
        )
        return [request.token for request in first]

    def _compose_apply(self) -> Call:
        given = dict(islice(self._giving_back.items(), BATCH))
        asked = list(islice(self._asking.values(), BATCH)) if self._subscribed else []
        for token in given:
            del self._giving_back[token]
        args: list[str | int] = [self.courier.client, len(given), *given]
        for request in asked:
            del self._asking[request.token]
            args += [request.token, request.claim, request.priority if request.may_wait else "x"]
            request.sent = True
        self._in_flight.append((partial(self._on_applied, given, asked), partial(self._not_applied, given, asked)))
        if self._giving_back or self._asking:
            self.link.ready(self)
        return Call(APPLY, self.keys, args)

    # What comes back.

    def receive(self, sent: float, replies: list[Any]) -> bool:
        """Take the replies to what `compose` made; False if the server cannot execute anything just now."""
        in_flight, self._in_flight = self._in_flight, []
        fine, refused = True, False
        for (take, undo), reply in zip(in_flight, replies, strict=True):
            if not isinstance(reply, RedisError):
                take(sent, reply)
                continue
            log.warning("%s: Redis %s answered %s", self.name, self.courier.shown_url, str(reply)[:500])
            if is_refusal(reply):
                self.refuse(reply)
                refused = True
            else:
                fine = False
                self.link.ready(self)
            undo()
        if refused:
            self._repeat_later()
        elif self._giving_back or self._queries or (self._asking and self._subscribed):
            self.link.ready(self)  # the link may have passed over this session while the round trip was under way
        self._set_timer()
        return fine

    def _repeat_later(self) -> None:
        """Try again what Redis has refused for this semaphore, in a while: the others of the link are not held up."""
        if self.standing.limit is None:  # never let in, so there is nothing to give back
            self._giving_back = {token: done for token, done in self._giving_back.items() if done}
        if self._repeating is None and (self._giving_back or self.held or self.waiting):
            self._repeating = self.courier.call_at(time.monotonic() + LOOK_AGAIN, self._repeat)

    def _repeat(self) -> None:
        self._repeating = None
        self.link.ready(self)

    def unsent(self) -> None:
        """Make everything of the last `compose` due again: it may or may not have been executed."""
        in_flight, self._in_flight = self._in_flight, []
        for _, undo in in_flight:
            undo()
        self._disappoint_the_hasty()
        self.link.ready(self)
        self._set_timer()

    def on_subscribed(self) -> None:
        """Look at the truth: messages sent before now have been missed."""
        self._subscribed = self._beat_now = True
        self.link.ready(self)

    def on_unsubscribed(self) -> None:
        """Note that grants are not heard of until the next subscription."""
        self._subscribed = False
        self._disappoint_the_hasty()

    def _disappoint_the_hasty(self) -> None:
        for request in [request for request in self.waiting.values() if not request.may_wait]:
            where, why = self.courier.shown_url, self.failure or "the semaphore is moving to another node"
            self._refuse(request, Unavailable(f"Redis {where} cannot be used: {why}"))

    def on_message(self, message: str) -> None:
        """Take a grant (`g`), a hint to look at the truth (`r`), or the word that the semaphore is gone (`c`)."""
        kind, *words = message.split(" ")
        if kind == "g":
            now = time.monotonic()
            told, expiry = int(words[0]), int(words[1])
            latest = now + (expiry - told) / 1000
            for token, fence in zip(words[2::2], words[3::2], strict=True):
                self._granted(token, int(fence), expiry, latest)
            self._set_timer()
        elif kind == "c":
            self.refuse_all(self.standing.closing())
        else:
            self._beat_now = True
            self.link.ready(self)

    def _on_declared(self, _sent: float, _reply: Any) -> None:
        self._declared = True

    def _on_renewed(self, slots: list[Slot], introduced: bool, sent: float, reply: Any) -> None:  # noqa: FBT001
        head, lapsed, expiry, lost, granted, gone = reply
        generation = self.standing.generation
        self._learn(sent, head)
        if head[1] < 0:
            return
        if lapsed and not introduced:  # whoever lost the lease may have lost the identity too
            self._introduced, self._beat_now = False, True
            self.link.ready(self)
        else:
            self._introduced = True
        missing = set(lost)
        deadline = self.standing.local(expiry)
        for slot in slots:
            if slot.token not in missing:
                slot.expiry_ms, slot.deadline = expiry, deadline
            elif slot.token in self.held:
                self._lose(slot, "Redis no longer has it: it was force-released, or its lease had run out there")
        for token, fence, until in zip(*[iter(granted)] * 3, strict=True):
            self._granted(token, fence, until)
        # Away for too long, or under another config: any waiter may have been dropped on the way.
        self._rejoin(self.waiting if lapsed or generation != self.standing.generation else gone)

    def _not_renewed(self, fresh: int) -> None:
        self._beat_now = True
        self._unconfirmed += fresh

    def _on_applied(
        self, given: dict[str, Callable[[int], None] | None], asked: list[Request], sent: float, reply: Any
    ) -> None:
        head, freed, answers, own, expiry = split_applied(reply, len(given), len(asked))
        self._learn(sent, head)
        for done, code in zip(given.values(), freed, strict=True):
            if done:
                done(code)
        for request, code, value, until in zip(asked, answers[::3], answers[1::3], answers[2::3], strict=True):
            if request.token not in self.waiting:
                continue  # abandoned meanwhile: its release is on the way
            if code == GRANTED:
                self._granted(request.token, value, until)
            elif code == QUEUED:
                request.ticket = value
            elif code != NOT_CONFIGURED:  # that one `_learn` has dealt with
                self._refuse(request, self.standing.refusal(code, request))
        for token, fence in zip(own[::2], own[1::2], strict=True):
            self._granted(token, fence, expiry)

    def _not_applied(self, given: dict[str, Callable[[int], None] | None], asked: list[Request]) -> None:
        self._giving_back = {
            **given,
            **self._giving_back,
            **given,
        }  # those first, and who waits for the answer still does
        still = {request.token: request for request in asked if request.token in self.waiting}
        self._asking = {**still, **self._asking}

    def _learn(self, sent: float, head: Any) -> None:
        """Take in what every reply says of the semaphore."""
        standing, limit = self.standing, self.standing.limit
        if standing.learn(sent, head):
            self._beat_now = True
            self.link.ready(self)
        if head[1] < 0:
            self._missing()
            return
        if standing.limit != limit:
            for request in [one for one in self.waiting.values() if 0 < head[1] < one.weight]:
                self._refuse(request, standing.refusal(TOO_HEAVY, request))
        if standing.closed:
            self.refuse_all(standing.closing())

    def _missing(self) -> None:
        """Bear with a config that is not there: it is declared, waited for, or missing for good."""
        now, standing = time.monotonic(), self.standing
        if self._own_config:
            self._declared = False
            self._rejoin(self.waiting)
            return
        if standing.missing_since is None:
            standing.missing_since = now
        if standing.limit is None or now - standing.missing_since > VANISHED_PATIENCE:
            standing.limit = None
            self.refuse_all(standing.missing(self.courier.shown_url))
        else:
            self.courier.call_at(now + LOOK_AGAIN, partial(self._rejoin, self.waiting))

    def _granted(self, token: str, fence: int, expiry: int, latest: float = inf) -> None:
        """Hand a slot to its request, or back to the server if nobody wants it any more."""
        if token in self.held:
            return
        request = self.waiting.get(token)
        deadline = min(self.standing.local(expiry), latest - self.standing.margin)
        if request is None or deadline <= time.monotonic():
            self._give_back(token)
            self._rejoin([token])
            return
        del self.waiting[token]
        self._asking.pop(token, None)
        slot = self.held[token] = Slot(self, request, fence, expiry, deadline)
        self._first_deadline = min(self._first_deadline, deadline)
        self._unconfirmed += 1
        request.finish(slot)

    def _rejoin(self, tokens: Iterable[str]) -> None:
        """Ask again for what the server may have forgotten; who has a ticket keeps the place."""
        for token in tokens:
            request = self.waiting.get(token)
            if request and request.sent:
                self._asking[token] = request
        if self._asking:
            self.link.ready(self)

    def _refuse(self, request: Request, error: SemaphoreError) -> None:
        if self.waiting.pop(request.token, None):
            self._forget(request)
        request.finish(error)

    def _forget(self, request: Request) -> None:
        self._asking.pop(request.token, None)
        if request.sent:
            self._give_back(request.token)
        self._unpark()

    def _give_back(self, token: str, done: Callable[[int], None] | None = None) -> None:
        if done or token not in self._giving_back:  # late word of its grant may give it back a second time
            self._giving_back[token] = done
        self.link.ready(self)

    def _unpark(self) -> None:
        if self._parked:
            self.ask(self._parked.popleft())

    # Time.

    @property
    def _next_beat(self) -> float:
        hurry = self.waiting or self._unconfirmed
        return self._last_beat + (self.standing.beat if hurry else min(self.standing.lease / 3, LONGEST_BEAT))

    def _set_timer(self) -> None:
        if not self.waiting and not self.held:
            return
        due = min(
            self._next_beat,
            min(self.standing.soonest, self._patience_ends) if self.waiting else inf,
            self._first_deadline if self.held else inf,
        )
        if self._timer is not None:
            if self._timer_at <= due:
                return  # it looks again when it fires
            self._timer.cancel()
        self._timer, self._timer_at = self.courier.call_at(due, self._on_timer), due

    def _on_timer(self) -> None:
        self._timer = None
        now = time.monotonic()
        if now >= self._first_deadline:
            for slot in [slot for slot in self.held.values() if slot.deadline <= now]:
                self._lose(slot, "its lease could not be renewed in time")
            self._first_deadline = min((slot.deadline for slot in self.held.values()), default=inf)
        if now >= self._patience_ends:
            self._send_away_the_overdue(now)
        if now >= self._next_beat or (self.waiting and now >= self.standing.soonest):
            self.standing.soonest = inf
            self._beat_now = True
            self.link.ready(self)
        else:
            self._set_timer()

    @property
    def _patience_ends(self) -> float:
        """When the oldest request will have waited for as long as the semaphore's `maxWait` lets it."""
        oldest = next(iter(self.waiting.values()), None)
        return oldest.asked_at + self.standing.max_wait if oldest and self.standing.max_wait else inf

    def _send_away_the_overdue(self, now: float) -> None:
        most = self.standing.max_wait
        for request in [request for request in self.waiting.values() if now - request.asked_at >= most]:
            longest = f"{most:g}s, its maxWait"
            self._refuse(request, AcquireTimeout(f"no slot of {self.name} within {longest}"))

    def _lose(self, slot: Slot, reason: str) -> None:
        del self.held[slot.token]
        slot.lose(reason)
        self._unpark()


def _nothing() -> None:
    pass
