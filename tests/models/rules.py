"""The rules of the protocol in plain Python: one semaphore, one waiter at a time, no batches, nothing clever.

A slot whose lease is over counts until somebody notices, and somebody notices as soon as it is in the way.
`seen` counts what has occurred, so that a test can tell whether it has explored what it claims to.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.models.steered import STEP, TICKET_EPOCH_MS

from distributed_semaphore.protocol.snapshot import client_of, weight_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from distributed_semaphore.protocol import Config

GRANTED, QUEUED, CLOSED, FULL, TOO_HEAVY, NOT_CONFIGURED, WOULD_WAIT = 1, 2, -1, -2, -3, -4, -5
MAX_FIRST_MS: Final = 5000
SILENT_MS: Final = 60_000


@dataclass(slots=True)
class Held:
    """A slot: until when it is held, and the fence of its grant."""

    expiry: int
    fence: int


@dataclass(slots=True)
class Rules:
    """What the server should know, and what it should answer. Times in ms, but for `us`."""

    us: int
    seen: Counter[str] = field(default_factory=Counter)
    listening: set[str] = field(default_factory=set)
    config: Config | None = None
    reclaim_until: int = 0
    holders: dict[str, Held] = field(default_factory=dict)
    queue: dict[str, int] = field(default_factory=dict)
    clients: dict[str, int] = field(default_factory=dict)
    identities: dict[str, str] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    ticket: int = 0
    fence: int = 0
    doomed: int | None = None
    """The lease of a semaphore that was deleted, until the last trace of it has gone."""
    ends: int | None = None
    """When the traces of a deleted semaphore go by themselves."""

    # What follows from it.

    @property
    def now(self) -> int:
        return self.us // 1000

    @property
    def line(self) -> list[str]:
        """Who waits, in the order in which they are granted."""
        return sorted(self.queue, key=lambda token: (self.queue[token], token))

    @property
    def held(self) -> int:
        return sum(map(weight_of, self.holders))

    @property
    def lease(self) -> int:
        return self.config.lease_ms if self.config else self.doomed or 0

    @property
    def first(self) -> int:
        return min(self.lease, MAX_FIRST_MS)

    @property
    def closed(self) -> bool:
        return self.doomed is not None or (self.config is not None and self.config.state == "Closed")

    @property
    def open(self) -> bool:
        return self.config is not None and self.config.state == "Active" and self.reclaim_until <= self.now

    def fits(self, token: str) -> bool:
        """Whether there is room for it; what has run out makes room."""
        if self.held + weight_of(token) > self.config.limit:
            self.notice()
        return self.held + weight_of(token) <= self.config.limit

    def free_for(self, token: str) -> bool:
        """Whether a newcomer can have a slot at once."""
        return self.open and not self.queue and self.fits(token)

    def too_heavy(self, token: str) -> bool:
        """Limit 0 may be raised again, so nobody is too heavy for it."""
        return self.config is not None and 0 < self.config.limit < weight_of(token)

    def live(self, token: str) -> bool:
        return self.holders[token].expiry > self.now

    def alive(self, client: str) -> bool:
        return self.clients.get(client, 0) > self.now

    # What happens by itself.

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self.us += ms * 1000
        if self.ends is not None and self.ends <= self.now:
            self.wipe()
            self.seen["the traces of a deleted semaphore ended by themselves"] += 1

    def wipe(self) -> None:
        """Lose everything."""
        for known in (self.holders, self.queue, self.clients, self.identities, self.counters):
            known.clear()
        self.config, self.doomed, self.ends = None, None, None
        self.reclaim_until = self.ticket = self.fence = 0

    # The scripts.

    def apply(self, me: str, releases: Sequence[str], asks: Sequence[tuple[str, str | int, str | int]]):
        """Give back, then ask, then grant: (freed, answers, own grants)."""
        freed = [self.give_back(token) for token in releases]
        answers = [word for ask in asks for word in self.ask(*ask)]
        if self.doomed is not None and 1 in freed and not self.holders:
            self.wipe()
            self.seen["the last holder of a deleted semaphore took the keys along"] += 1
        return freed, answers, self.grant(me) if self.queue else []

    def give_back(self, token: str) -> int:
        if slot := self.holders.pop(token, None):
            self.seen["a release came after the lease"] += slot.expiry <= self.now
            self.counters["released"] += 1
            return 1
        if self.queue.pop(token, None) is not None:
            self.counters["left"] += 1
            self.seen["a waiter left"] += 1
            return 2
        self.seen["an unknown token was given back"] += 1
        return 0

    def ask(self, token: str, claim: str | int, priority: str | int) -> tuple[int, int, int]:
        """Answer one acquire: code, fence or ticket, expiry."""
        if claim != "":
            if token in self.holders and self.live(token):
                self.seen["a retry found its slot"] += 1
                return GRANTED, self.holders[token].fence, self.holders[token].expiry
            if token in self.holders:
                self.seen["a retry found its slot run out"] += 1
                self.take_back(token)
            if token in self.queue:
                self.seen["a retry found its place"] += 1
                return QUEUED, self.queue[token] % STEP, 0
        refusal = self.shut_out(token)
        if not refusal and self.free_for(token):
            self.seen["granted at once"] += 1
            self.hold(token)
            return GRANTED, self.fence, self.now + self.first
        refusal = refusal or (WOULD_WAIT if priority == "x" else self.turned_away())
        if refusal:
            self.seen[f"refused: {refusal}"] += 1
            if refusal != NOT_CONFIGURED and self.doomed is None:
                self.counters["refused"] += 1
            return refusal, 0, 0
        if isinstance(claim, int):
            self.seen["rejoined with an old ticket"] += 1
            ticket = claim
            self.ticket = max(self.ticket, ticket)
        else:
            self.ticket = ticket = max(self.ticket + 1, self.now - TICKET_EPOCH_MS)
        self.queue[token] = ticket - int(priority) * STEP
        self.seen["queued at limit 0"] += self.config.limit == 0
        self.seen["queued while paused"] += self.config.state == "Paused"
        self.seen["queued during a reclaim"] += self.reclaim_until > self.now
        return QUEUED, ticket, 0

    def shut_out(self, token: str) -> int:
        """Why nobody like this one is let in, now or later; 0 if that is not so."""
        if self.closed:
            return CLOSED
        if self.config is None:
            return NOT_CONFIGURED
        return TOO_HEAVY if self.too_heavy(token) else 0

    def turned_away(self) -> int:
        """Whether the queue is full of the living."""
        if len(self.queue) >= self.config.max_waiting:
            self.seen["a full queue was rid of the dead"] += self.drop_dead_waiters() > 0
        return FULL if len(self.queue) >= self.config.max_waiting else 0

    def renew(self, me: str, identity: str, claims: Sequence[tuple[str, int, int]], waiting: Sequence[str]):
        """Take a heartbeat: (lapsed, expiry, lost, granted, gone)."""
        if self.config is None and self.doomed is None:
            return [1, 0, [], [], []]
        if self.doomed is not None and not self.holders:
            return [1, 0, [token for token, _, _ in claims], [], []]
        lapsed = not self.alive(me)
        self.seen["a lapsed process was told"] += lapsed
        self.clients[me] = self.now + self.first
        if identity:
            self.identities[me] = identity
        lost = [token for token, fence, believed in claims if not self.keep(token, fence, believed)]
        granted, gone = [], []
        for token in waiting:
            if token in self.queue:
                break
            if slot := self.holders.get(token):
                granted += [token, slot.fence, slot.expiry]
                self.seen["a heartbeat told of a grant"] += 1
            else:
                gone.append(token)
                self.seen["a heartbeat told of a lost place"] += 1
        if self.queue:
            self.notice()
        for token, fence in self.grant(me) if self.queue else []:
            granted += [token, fence, self.now + self.first]
        if self.doomed is not None:
            self.ends = self.now + self.lease + 60_000
        return [int(lapsed), self.now + self.lease if claims else 0, lost, granted, gone]

    def keep(self, token: str, fence: int, believed: int) -> bool:
        """Renew a slot for the lease of the present config, or put it back in a reclaim."""
        expiry = self.now + self.lease
        if token in self.holders and self.live(token):
            self.seen["a shorter lease reached a holder"] += expiry < self.holders[token].expiry
            self.holders[token].expiry = expiry
            return True
        if self.reclaim_until > self.now and believed > self.now:
            self.holders[token] = Held(expiry, fence)
            self.queue.pop(token, None)
            self.fence = max(self.fence, fence)
            self.counters["reclaimed"] += 1
            self.seen["a slot was reclaimed"] += 1
            return True
        self.seen["a claim came too late"] += self.reclaim_until > self.now
        self.seen["a holder was told of its loss"] += 1
        return False

    def reap(self) -> None:
        """Keep house: nothing dead stays."""
        self.notice()
        self.drop_dead_waiters()
        self.grant("")
        for client, expiry in list(self.clients.items()):
            if expiry <= self.now - self.lease - SILENT_MS:
                del self.clients[client]
                self.identities.pop(client, None)
                self.seen["a silent process was forgotten"] += 1

    def declare(self, config: Config, window: int, fence: int) -> int:
        """Take a config: 1 written, 2 known, 0 stale."""
        if old := self.config:
            older = config.epoch < old.epoch or (config.uid == old.uid and config.generation < old.generation)
            if older or (not config.uid and old.uid):
                self.seen["a stale config was refused"] += 1
                return 0
            if config == old:
                return 2
            self.seen["the limit fell below what is held"] += config.limit < self.held
        else:
            self.fence = max(self.fence, fence)
            if self.doomed is not None:
                self.seen["a deleted semaphore was wanted again"] += 1
            elif window:
                self.reclaim_until = self.now + window
                self.seen["a reclaim began"] += 1
        self.config, self.doomed, self.ends = config, None, None
        if config.state == "Closed":
            self.seen["waiters were sent away"] += bool(self.queue)
            self.queue.clear()
        self.grant("")
        return 1

    def revoke(self, tokens: Iterable[str]) -> int:
        """Take slots and places away."""
        taken = 0
        for token in tokens:
            if self.holders.pop(token, None):
                self.seen["a slot was revoked"] += 1
            elif self.queue.pop(token, None) is not None:
                self.seen["a place was revoked"] += 1
            else:
                continue
            taken += 1
        if taken:
            self.counters["revoked"] += taken
        self.grant("")
        return taken

    def forget(self, uid: str, epoch: int) -> int:
        """Delete the semaphore: slots still held, or -1 where a later leader has written it."""
        if self.config is None or self.config.uid != uid:
            return 0
        if epoch < self.config.epoch:
            self.seen["a stale deletion was refused"] += 1
            return -1
        lease, first, holding, waiting = self.lease, self.first, sum(map(self.live, self.holders)), bool(self.queue)
        if holding:
            self.config = None
            self.queue.clear()
            self.reclaim_until = 0
        else:
            self.wipe()
        if holding or waiting:
            self.doomed, self.ends = lease, self.now + (lease + 60_000 if holding else first)
        self.seen["a semaphore was deleted under its holders"] += holding > 0
        return holding

    # What the scripts share.

    def hold(self, token: str) -> None:
        self.fence = max(self.fence + 1, self.us)
        self.holders[token] = Held(self.now + self.first, self.fence)
        self.counters["granted"] += 1

    def take_back(self, token: str) -> None:
        del self.holders[token]
        self.counters["expired"] += 1
        self.seen["a lease ran out"] += 1

    def notice(self) -> None:
        """Take back every slot whose lease is over."""
        for token in list(self.holders):
            if not self.live(token):
                self.take_back(token)

    def drop_dead_waiters(self) -> int:
        dead = [token for token in self.queue if not self.alive(client_of(token))]
        for token in dead:
            self.abandon(token)
        return len(dead)

    def abandon(self, token: str) -> None:
        del self.queue[token]
        self.counters["abandoned"] += 1

    def grant(self, me: str) -> list[tuple[str, int]]:
        """Give free slots to the head of the queue, again and again; what the caller itself got."""
        own: list[tuple[str, int]] = []
        if not self.open or self.held >= self.config.limit:
            self.notice()
        while self.open and self.queue and self.held < self.config.limit:
            heads = self.line[: self.config.limit - self.held]  # one look: as many waiters as there are free slots
            self.lapse_the_deaf({client_of(token) for token in heads} - {me})
            for token in heads:
                client = client_of(token)
                if client != me and not self.alive(client):
                    self.seen["a dead head was dropped"] += 1
                    self.abandon(token)
                elif self.overdue(token):
                    self.seen["an overdue head was dropped"] += 1
                    del self.queue[token]
                    self.counters["overdue"] += 1
                elif self.too_heavy(token):
                    self.seen["a head too heavy for the limit was dropped"] += 1
                    del self.queue[token]
                    self.counters["refused"] += 1
                elif self.held + weight_of(token) <= self.config.limit:
                    self.seen["granted from the queue"] += 1
                    self.seen["granted by priority"] += min(self.queue, key=lambda t: self.queue[t] % STEP) != token
                    del self.queue[token]
                    self.hold(token)
                    if client == me:
                        own.append((token, self.fence))
                elif self.fits(token):
                    self.seen["a lease that had run out made room for a heavy head"] += 1
                    break
                else:
                    self.seen["a heavy head held up the others"] += len(self.queue) > 1
                    return own
        return own

    def lapse_the_deaf(self, clients: Iterable[str]) -> None:
        """Take a process that does not listen for dead; if it lives, its next heartbeat tells it."""
        for client in clients:
            if self.alive(client) and client not in self.listening:
                self.seen["a deaf process was taken for dead"] += 1
                self.clients[client] = self.now

    def overdue(self, token: str) -> bool:
        waited = self.now - TICKET_EPOCH_MS - self.queue[token] % STEP
        return 0 < self.config.max_wait_ms < waited
