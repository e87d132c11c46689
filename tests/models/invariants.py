"""What must hold whatever happens: stated on the server's own state, without the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distributed_semaphore.protocol.snapshot import client_of, weight_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.models.steered import State


def check_state(state: State) -> None:
    """Every slot has an entry, every entry a slot; weights add up; only what is meant to end has an end."""
    assert state.holders.keys() == state.grants.keys(), "a slot without a fence, or a fence without a slot"
    assert not state.holders.keys() & state.queue.keys(), "somebody holds and waits with the same token"
    extra = sum(weight_of(token) - 1 for token in state.holders)
    assert state.tally[2] == extra, f"the weight beyond one is {extra}, counted as {state.tally[2]}"
    fences = list(state.grants.values())
    assert len(set(fences)) == len(fences), "two slots of one fence"
    assert not fences or max(fences) <= state.tally[1], "a fence above the counter"
    if state.config:
        endless = int(state.config["lifetime"]) == 0
        bad = [key for key, left in state.lifetimes.items() if (left is None) != endless]
        assert not bad, f"of a semaphore with{'out' if endless else ''} a lifetime: {bad}"
    elif state.holders or state.counters:
        assert None not in state.lifetimes.values(), f"left behind for ever: {state.lifetimes}"


def check_step(before: State, after: State, fence: int, reclaimed: Collection[str] = ()) -> list[str]:
    """Nothing is granted above the limit or past somebody who could have been granted; gives the tokens granted.

    Args:
        before: the state before the call.
        after: the state after it.
        fence: the highest ever seen before it.
        reclaimed: tokens that the call claimed.
    """
    new = [
        token for token in after.holders if token not in before.holders or after.grants[token] != before.grants[token]
    ]
    granted = sorted((token for token in new if token not in reclaimed), key=after.grants.__getitem__)
    if granted:
        held = sum(weight_of(token) for token, expiry in after.holders.items() if expiry > after.now)
        assert held <= int(after.config["limit"]), f"granted {granted}, so that {held} are held"
        assert after.config["state"] == "Active", f"granted {granted} while {after.config['state']}"
        assert int(after.config.get("reclaim", 0)) <= after.now, f"granted {granted} during a reclaim"
        assert after.grants[granted[0]] > fence, f"fence {after.grants[granted[0]]} of {granted[0]} after {fence}"
    from_queue = [token for token in granted if token in before.queue]
    assert from_queue == sorted(from_queue, key=lambda token: (before.queue[token], token)), "granted out of order"
    for token in from_queue:
        passed = [waiter for waiter, score in after.queue.items() if score < before.queue[token]]
        assert not passed, f"{token} was granted before {passed}"
    return granted


def check_nobody_is_forgotten(
    state: State, listening: Collection[str], me: str, head: list[Any] | None, *, looked: bool
) -> None:
    """After a call that grants: no slot idle beside a head that could take it, and no timer in the past.

    Args:
        state: the state after the call.
        listening: the processes with a listener.
        me: who called; alive by that.
        head: what the reply said of the semaphore.
        looked: whether the call looks for expired leases in any case; others may leave them to the timer of who waits.
    """
    if head and head[6] and not head[7]:
        assert head[6] > state.now, f"told to look again {state.now - head[6]} ms ago: its process would spin"
    config = state.config
    if not state.queue or not config or config["state"] != "Active" or int(config.get("reclaim", 0)) > state.now:
        return
    first = min(state.queue, key=lambda token: (state.queue[token], token))
    client, limit = client_of(first), int(config["limit"])
    held = sum(weight_of(token) for token, expiry in state.holders.items() if expiry > state.now or not looked)
    if held < limit:
        alive = client == me or (client in listening and state.clients.get(client, 0) > state.now)
        assert alive, f"{limit - held} of {limit} idle behind {first}, whose process is dead"
        assert held + weight_of(first) > limit, f"{limit - held} of {limit} idle while {first} waits"
