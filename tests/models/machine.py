"""Steps that hypothesis chooses: what processes, the operator, a person and misfortune may do to a semaphore."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from tests.models.pair import Pair

from distributed_semaphore.protocol import Config, State

if TYPE_CHECKING:
    from tests.models.steered import Steered

clients = st.sampled_from(["a", "b", "c", "d"])
weights = st.sampled_from([1, 1, 1, 1, 2, 3])
priorities = st.sampled_from([0, 0, 0, 1, -1])
which = st.integers(0, 99)
lost = st.sampled_from([False, False, False, True])
times = st.sampled_from([1, 300, 999, 1000, 2000, 5000])
edits = st.sampled_from(
    [
        *({"limit": limit} for limit in (0, 1, 2, 2, 3, 5, 8)),
        *({"state": state} for state in (State.PAUSED, State.CLOSED)),
        *({"lease_ms": lease} for lease in (1000, 3000, 20_000)),
        *({"max_waiting": most} for most in (0, 2, 10_000)),
        *({"max_wait_ms": longest} for longest in (0, 2000)),
        *({"lifetime_ms": lifetime} for lifetime in (0, 86_400_000)),
    ]
)
stale = st.sampled_from([{"generation": 0}, {"uid": ""}, {"epoch": 0}, {}])
upsets = st.sampled_from(["lose", "lose and reclaim", "lose and reclaim", "delete", "delete", "wait for long"])

HEARTBEAT_MS = 900
SETTLED_WITHIN_MS = 45_000
"""The longest reclaim, then the longest lease of a slot that nobody knows of, both 20 s."""


class Machine(RuleBasedStateMachine):
    """Drives one server, and counts what has occurred; both are given by a subclass (`run`)."""

    server: ClassVar[Steered]
    seen: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair(self.server, self.seen)
        self.config = Config(limit=2, lease_ms=3000, uid="uid", generation=1, epoch=1)

    def token(self, number: int, *, of: str | None = None) -> str | None:
        """Choose one of the tokens that somebody, or one process, has or wants."""
        processes = [self.pair.process(of)] if of else self.pair.processes.values()
        known = [token for process in processes for token in (*process.held, *process.waiting)]
        return known[number % len(known)] if known else None

    def write(self, **changes) -> None:
        self.pair.generation += 1
        self.config = replace(self.config, **{"state": State.ACTIVE, "generation": self.pair.generation, **changes})
        self.pair.declare(self.config)

    @initialize(limit=st.integers(1, 4), lease=st.sampled_from([1000, 3000, 20_000]))
    def begin(self, limit, lease) -> None:
        self.write(limit=limit, lease_ms=lease)
        for client in "abc":
            self.pair.listen(client, listening=True)
            self.pair.renew(client, introduce=True)

    @rule(client=clients, weight=weights, priority=priorities, n=st.integers(1, 3), lost=lost)
    def acquire(self, client, weight, priority, n, lost) -> None:
        tokens = [self.pair.process(client).token(weight) for _ in range(n)]
        self.pair.apply(client, (), [(token, "", priority) for token in tokens], lost=lost)

    @rule(n=st.integers(1, 4), weight=weights)
    def crowd(self, n, weight) -> None:
        """All who are well want slots, so that a queue stands."""
        for client in "abc":
            self.pair.listen(client, listening=True)
            self.pair.renew(client)
            self.pair.apply(client, (), [(self.pair.process(client).token(weight), "", 0) for _ in range(n)])

    @rule(client=clients, weight=weights)
    def try_acquire(self, client, weight) -> None:
        self.pair.apply(client, (), [(self.pair.process(client).token(weight), "", "x")])

    @rule(client=clients, number=which, with_ticket=st.booleans(), weight=weights)
    def ask_again(self, client, number, with_ticket, weight) -> None:
        process = self.pair.process(client)
        token = self.token(number, of=client) or process.token(weight)
        ticket, priority = process.waiting.get(token, (None, 0))
        self.pair.apply(client, (), [(token, (with_ticket and ticket) or "?", priority)])

    @rule(client=clients, number=which, another=st.booleans(), weight=weights, lost=lost)
    def release(self, client, number, another, weight, lost) -> None:
        asks = [(self.pair.process(client).token(weight), "", 0)] if another else []
        self.pair.apply(client, [self.token(number) or "nobody.1.1"], asks, lost=lost)

    @rule()
    def release_all(self) -> None:
        for process in self.pair.processes.values():
            self.pair.apply(process.name, [*process.held, *process.held][:500])

    @rule(client=clients, introduce=st.booleans(), lost=lost)
    def renew(self, client, introduce, lost) -> None:
        self.pair.renew(client, introduce=introduce, lost=lost)

    @rule(ms=times, lost=lost)
    def advance_while_all_renew(self, ms, lost) -> None:
        self.pair.advance(ms)
        self.pair.deliver(lost=lost)
        for client in list(self.pair.processes):
            self.pair.renew(client)

    @rule(lost=lost)
    def deliver(self, lost) -> None:
        self.pair.deliver(lost=lost)

    @rule(client=clients, listening=st.sampled_from([True, True, False]))
    def listen(self, client, listening) -> None:
        self.pair.listen(client, listening=listening)

    @rule(ms=times)
    def advance(self, ms) -> None:
        self.pair.advance(ms)

    @rule(more=st.sampled_from([-1, 0, 1]))
    def advance_to_the_next_expiry(self, more) -> None:
        ahead = min(self.pair.server.state.holders.values(), default=0) - self.pair.rules.now + more
        if 0 < ahead < 60_000:
            self.pair.advance(ahead)

    @rule(inspect=st.booleans())
    def reap(self, inspect) -> None:
        self.pair.inspect() if inspect else self.pair.reap()

    @rule(changes=edits)
    def edit(self, changes) -> None:
        self.write(**changes)

    @rule(how=stale, numbers=st.lists(which, max_size=2))
    def interfere(self, how, numbers) -> None:
        """Stale writes of a config, and slots or places taken away by hand."""
        if numbers:
            self.pair.revoke([token for number in numbers if (token := self.token(number))])
        elif self.pair.rules.config:
            self.pair.declare(replace(self.config, **how))

    @rule()
    def settle(self) -> None:
        """Once faults stop, each who waits is granted, within bounded heartbeats."""
        processes = list(self.pair.processes.values())
        waiting = sum(len(process.waiting) for process in processes)
        self.write(limit=3, lease_ms=3000, max_waiting=10_000, max_wait_ms=0)
        for process in processes:
            self.pair.listen(process.name, listening=True)
        for _ in range(waiting + SETTLED_WITHIN_MS // HEARTBEAT_MS):
            self.pair.deliver(lost=False)
            for process in processes:
                self.pair.renew(process.name)
                self.pair.apply(process.name, list(process.held))
            if not any(process.waiting for process in processes):
                break
            self.pair.advance(HEARTBEAT_MS)
        starved = [token for process in processes for token in process.waiting]
        assert not starved, f"{starved} still wait although all is well"
        self.seen["all who waited were granted"] += waiting > 0

    @rule(what=upsets)
    def upset(self, what) -> None:
        if what == "wait for long":
            self.pair.advance(100_000)
        elif what == "delete":
            self.pair.forget("another")
            self.pair.forget("uid", 0)
            self.pair.forget("uid")
        else:
            self.pair.wipe()
            if what == "lose and reclaim":
                self.write()
                for client in list(self.pair.processes):
                    self.pair.renew(client)


def run(server: Steered, examples: int, *, repeatable: bool, shrink: bool = True) -> Counter[str]:
    """Take so many runs of up to 60 steps and give what has occurred in them.

    Args:
        server: what to drive.
        examples: how many runs.
        repeatable: the same runs each time, else others.
        shrink: look for the shortest run that fails as the first did.
    """
    seen: Counter[str] = Counter()
    profile = settings(
        max_examples=examples,
        stateful_step_count=60,
        derandomize=repeatable,
        database=None,
        deadline=None,
        print_blob=True,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(type("Driven", (Machine,), {"server": server, "seen": seen}), settings=profile)
    return seen
