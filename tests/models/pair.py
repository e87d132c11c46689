"""The server and the rules side by side: each call goes to both, and whatever differs is a bug in one of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.models.invariants import check_nobody_is_forgotten, check_state, check_step
from tests.models.rules import Rules

from distributed_semaphore.protocol import Config
from distributed_semaphore.protocol.snapshot import client_of, parse_snapshot

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from tests.models.steered import Steered

Ask = tuple[str, "str | int", "str | int"]


@dataclass(slots=True)
class Process:
    """What one process believes, from the replies and messages that reached it."""

    name: str
    made: int = 0
    held: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Token to fence and expiry."""
    waiting: dict[str, tuple[int | None, int]] = field(default_factory=dict)
    """Token to ticket, if one was heard of, and priority."""

    def token(self, weight: int) -> str:
        self.made += 1
        return f"{self.name}.{self.made}.{weight}"

    def granted(self, token: str, fence: int, expiry: int) -> None:
        """Hear of a slot; of one that is held, or that nobody wants any more, this is no news."""
        if self.waiting.pop(token, None):
            self.held[token] = (fence, expiry)

    def drop(self, token: str) -> None:
        self.held.pop(token, None)
        self.waiting.pop(token, None)


class Pair:
    """A server, the rules, and the processes that use them."""

    def __init__(self, server: Steered, seen: Counter[str]) -> None:
        server.reset()
        self.server = server
        self.rules = Rules(us=server.us, seen=seen)
        self.processes: dict[str, Process] = {}
        self.generation = 0
        self.highest = 0
        """The highest fence ever seen."""
        self.doubtful: set[str] = set()
        """Tokens whose holders may believe in them for longer than the server does: they were revoked, or lost with the
        data, or renewed for a shorter lease in a reply that did not arrive."""
        self.longest_lease = 0

    # The world.

    def process(self, name: str) -> Process:
        return self.processes.setdefault(name, Process(name))

    def advance(self, ms: int) -> None:
        self.server.advance(ms)
        self.rules.advance(ms)
        self.compare()

    def listen(self, name: str, *, listening: bool) -> None:
        self.server.listen(name, listening=listening)
        self.rules.listening = self.server.listening

    def wipe(self) -> None:
        """Lose all data; who held may believe in it until a renewal fails."""
        self.doubtful |= self.server.state.holders.keys()
        self.server.wipe()
        self.rules.wipe()
        self.compare()

    def deliver(self, *, lost: bool) -> None:
        """Hand all messages over, or lose them."""
        mail, self.server.mail = self.server.mail, []
        for name, text in mail:
            kind, *words = text.split()
            if lost or kind != "g":
                self.rules.seen["a message was lost"] += lost
                continue
            for token, fence in zip(words[2::2], words[3::2], strict=True):
                self.rules.seen["a message told of a grant"] += 1
                if int(words[1]) > self.rules.now:
                    self.process(name).granted(token, int(fence), int(words[1]))

    # The calls.

    def apply(self, name: str, releases: Sequence[str] = (), asks: Sequence[Ask] = (), *, lost: bool = False) -> None:
        process = self.process(name)
        for token, claim, priority in asks:
            process.waiting.setdefault(
                token, (claim if isinstance(claim, int) else None, 0 if priority == "x" else int(priority))
            )
        for token in releases:
            self.process(client_of(token)).drop(token)
        expected = self.rules.apply(name, releases, asks)
        flat = [word for ask in asks for word in ask]
        _, freed, answers, own, expiry = self.call("apply", name, [name, len(releases), *releases, *flat])
        assert freed == expected[0], f"given back: {freed}, the rules say {expected[0]}"
        assert answers == expected[1], f"answers: {answers}, the rules say {expected[1]}"
        got = list(zip(own[::2], own[1::2], strict=True))
        assert got == expected[2], f"granted {got}, the rules say {expected[2]}"
        if lost:
            return
        for (token, _, priority), code, value, until in zip(
            asks, answers[::3], answers[1::3], answers[2::3], strict=True
        ):
            if code == 1:
                process.granted(token, value, until)
                process.held[token] = (value, until)
            elif code == 2:
                process.waiting[token] = (value, int(priority))
            else:
                process.drop(token)
        for token, fence in zip(own[::2], own[1::2], strict=True):
            process.granted(token, fence, expiry)

    def renew(self, name: str, *, introduce: bool = False, lost: bool = False) -> None:
        process = self.process(name)
        process.held = {token: slot for token, slot in process.held.items() if slot[1] > self.rules.now}
        claims = [(token, *slot) for token, slot in process.held.items()]
        order = sorted(
            process.waiting, key=lambda token: (-process.waiting[token][1], process.waiting[token][0] or 1 << 50)
        )
        waiting, identity = order[:16], '{"pod":"p"}' if introduce else ""
        expected = self.rules.renew(name, identity, claims, waiting)
        self.doubtful |= {token for token, _, believed in claims if believed > expected[1]}  # until the reply arrives
        flat = [word for claim in claims for word in claim]
        head, *reply = self.call("renew", name, [name, identity, len(claims), *flat, *waiting], [t for t, *_ in claims])
        assert reply == expected, f"heartbeat: {reply}, the rules say {expected}"
        if lost:
            return
        lapsed, expiry, gone_slots, granted, gone = reply
        if head[1] < 0:
            return
        for token, fence, _ in claims:
            process.held[token] = (fence, expiry)
            self.doubtful.discard(token)
        for token in gone_slots:
            process.drop(token)
        for token, fence, until in zip(*[iter(granted)] * 3, strict=True):
            if until > self.rules.now:
                process.granted(token, fence, until)
        # One that was asked for again while it was held, and taken away meanwhile, is given up with its slot.
        again = process.waiting if lapsed else [token for token in gone if token in process.waiting]
        asks = [(token, process.waiting[token][0] or "?", process.waiting[token][1]) for token in again]
        if asks and head[1] >= 0:
            self.apply(name, (), asks)

    def reap(self) -> None:
        self.rules.reap()
        self.call("reap", "", [])

    def declare(self, config: Config) -> None:
        window = self.longest_lease if self.highest else 0
        self.longest_lease = max(self.longest_lease, config.lease_ms)
        expected = self.rules.declare(config, window, self.highest)
        reply = self.call(
            "declare", "", [config.uid, config.generation, config.epoch, window, self.highest, *config.fields()]
        )
        assert reply[0] == expected, f"declared: {reply[0]}, the rules say {expected}"

    def revoke(self, tokens: Sequence[str]) -> None:
        self.doubtful |= set(tokens)
        expected = self.rules.revoke(tokens)
        reply = self.call("revoke", "", list(tokens))
        assert reply[0] == expected, f"revoked: {reply[0]}, the rules say {expected}"

    def forget(self, uid: str, epoch: int = 1) -> None:
        expected = self.rules.forget(uid, epoch)
        reply = self.call("forget", "", [uid, epoch])
        assert reply == expected, f"forgotten under {reply} holders, the rules say {expected}"

    def inspect(self) -> None:
        before = self.server.state
        snapshot = parse_snapshot(self.server.call("inspect", 100))
        assert self.server.state == before, "a look changed something"
        assert [waiter.token for waiter in snapshot.waiters] == self.rules.line
        shown = [holder.token for holder in snapshot.holders]
        assert shown == sorted(
            filter(self.rules.live, self.rules.holders), key=lambda token: self.rules.holders[token].fence
        )

    # What both must agree on.

    def call(self, script: str, me: str, args: list[str | int], claimed: Sequence[str] = ()) -> Any:
        """Run a script, on and on while it says that it stopped at its bound, and check what came of it."""
        before = self.server.state
        reply = self.server.call(script, *args)
        head = reply[0] if script in {"apply", "renew", "reap"} else None
        if head[7] if head else isinstance(reply, list) and reply[1]:
            self.rules.seen["a call stopped at its bound"] += 1
            self.go_on(script, me, reply)
        check_step(before, self.server.state, self.highest, claimed)
        self.highest = max(self.highest, self.server.state.tally[1])
        if script != "forget" and not (script == "declare" and reply[0] != 1):
            looked = script in {"renew", "reap"}
            check_nobody_is_forgotten(self.server.state, self.server.listening, me, head, looked=looked)
        self.compare()
        return reply

    def go_on(self, script: str, me: str, reply: list[Any]) -> None:
        """Do what the caller does: a process asks for nothing more, the operator keeps house; grants join the reply."""
        if script not in {"apply", "renew"}:
            while self.server.call("reap")[0][7]:
                pass
            self.rules.reap()
            return
        more = True
        while more:
            head, _, _, own, expiry = self.server.call("apply", me, 0)
            more = head[7]
            for token, fence in zip(own[::2], own[1::2], strict=True):
                reply[3 if script == "apply" else 4].extend(
                    [token, fence] if script == "apply" else [token, fence, expiry]
                )

    def compare(self) -> None:
        """Hold the server's state against the rules', and the beliefs of processes against both."""
        state, rules = self.server.state, self.rules
        check_state(state)
        same("slots", state.holders, {token: slot.expiry for token, slot in rules.holders.items()})
        same("fences", state.grants, {token: slot.fence for token, slot in rules.holders.items()})
        same("queue", state.queue, rules.queue)
        same("processes", state.clients, rules.clients)
        same("identities", state.identities, rules.identities)
        same("config", Config.parse(state.config), rules.config)
        same("the mark of a deleted semaphore", "doomed" in state.counters, rules.doomed is not None)
        if state.counters and rules.config:
            ticket, fence, _, _, granted, released, *_ = state.tally
            same("ticket and fence", (ticket, fence), (rules.ticket, rules.fence))
            counted = {"granted": granted, "released": released}
            for name in ("expired", "left", "abandoned", "overdue", "refused", "reclaimed", "revoked"):
                counted[name] = int(state.counters.get(name, 0))
            same("totals", counted, {name: rules.counters[name] for name in counted})
        for process in self.processes.values():
            for token, (_, believed) in process.held.items():
                if believed > rules.now and token not in self.doubtful:
                    assert believed <= state.holders.get(token, 0), (
                        f"{token} believes in its slot for longer than Redis"
                    )


def same(what: str, server: object, rules: object) -> None:
    """Say what differs."""
    assert server == rules, f"{what}: the server has {server}, the rules say {rules}"
