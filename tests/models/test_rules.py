"""The protocol against its rules in plain Python, in thousands of steps that hypothesis chooses."""

from __future__ import annotations

import os
from typing import Final

import pytest
from tests.models.machine import run
from tests.models.steered import Steered

EXAMPLES: Final = int(os.environ.get("SEMAPHORE_MODEL_EXAMPLES", "0"))
"""How many runs, each time others; 0: few, and always the same."""
FEW: Final = 80
MANY: Final = 1000
"""From so many runs on, what is rare must have occurred, too."""

ALWAYS: Final = {
    "a dead head was dropped",
    "a heartbeat told of a grant",
    "a heartbeat told of a lost place",
    "a heavy head held up the others",
    "a lapsed process was told",
    "a lease ran out",
    "a message told of a grant",
    "a message was lost",
    "a place was revoked",
    "a reclaim began",
    "a retry found its place",
    "a retry found its slot",
    "a semaphore was deleted under its holders",
    "a slot was reclaimed",
    "a slot was revoked",
    "a stale config was refused",
    "a stale deletion was refused",
    "all who waited were granted",
    "granted at once",
    "granted from the queue",
    "queued during a reclaim",
    "rejoined with an old ticket",
    "the limit fell below what is held",
    *(f"refused: {code}" for code in (-1, -2, -3, -4, -5)),
}
"""What even a few runs meet, or they are worth nothing."""
RARELY: Final = {
    "a call stopped at its bound",
    "a claim came too late",
    "a deaf process was taken for dead",
    "a deleted semaphore was wanted again",
    "a head too heavy for the limit was dropped",
    "a holder was told of its loss",
    "a lease that had run out made room for a heavy head",
    "an overdue head was dropped",
    "granted by priority",
    "queued while paused",
    "the last holder of a deleted semaphore took the keys along",
    "the traces of a deleted semaphore ended by themselves",
    "waiters were sent away",
}
"""What many runs meet besides."""


@pytest.mark.timeout(120 + EXAMPLES)
def test_the_scripts_keep_the_rules(server):
    steered = Steered(server.url)
    seen = run(steered, EXAMPLES or FEW, repeatable=not EXAMPLES)
    steered.close()
    expected = ALWAYS | RARELY if EXAMPLES >= MANY else ALWAYS
    missing = sorted(what for what in expected if not seen[what])
    assert not missing, f"the runs did not meet: {missing}"
