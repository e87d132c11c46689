"""The model is worth what it catches: each of these faults, put into the scripts, must come to light."""

from __future__ import annotations

import pytest
from redis.exceptions import ResponseError
from tests.models.machine import run
from tests.models.steered import Steered

from distributed_semaphore.protocol.scripts import SCRIPTS

MUTANTS = {
    "a limit that newcomers do not meet": (
        "return held + weight <= limit\nend",
        "return true\nend",
    ),
    "a limit that grants from the queue do not meet": (
        "elseif held + weight > limit then\n        heavy = true",
        "elseif false then\n        heavy = true",
    ),
    "last come, first served": (
        "call('ZRANGE', QUEUE, 0, math.min(limit - held, MOST) - 1, 'WITHSCORES')",
        "call('ZRANGE', QUEUE, 0, math.min(limit - held, MOST) - 1, 'REV', 'WITHSCORES')",
    ),
    "a newcomer that overtakes who waits": (
        "if waiting > 0 or not open then",
        "if not open then",
    ),
    "a release that forgets the grant": (
        "    call('ZREM', GRANTS, token)\n    extra",
        "    extra",
    ),
    "a release that forgets the weight": (
        "    extra = extra - weight_of(token) + 1\n    released_at",
        "    released_at",
    ),
    "a slot that stays when its lease has run out": (
        "  if #expired > 0 then\n    take_back(expired)\n  end",
        "",
    ),
    "a process that is granted to when it is dead": (
        "if leases[i] and tonumber(leases[i]) > now then",
        "if true then",
    ),
    "a fence that begins anew after a loss": (
        "fence, changed = max(fence, known), true",
        "changed = true",
    ),
    "a fence that does not rise": (
        "fence = max(fence + 1, usec)\n  granted",
        "fence = max(fence, usec)\n  granted",
    ),
    "a grant during a reclaim": (
        "open = state == 'Active' and reclaim <= now",
        "open = state == 'Active'",
    ),
    "an acquire that was sent again and takes a second place": (
        "if until_ms > now then\n      code",
        "if false then\n      code",
    ),
    "a stale config that is written": (
        "if older or (uid == '' and present[1] ~= '') then",
        "if false then",
    ),
    "a message before the grant": (
        "    if n > 0 then\n      call('ZADD', HOLDERS, unpack(holders))",
        "    call('PUBLISH', '', '')\n    if n > 0 then\n      call('ZADD', HOLDERS, unpack(holders))",
    ),
}


@pytest.mark.parametrize("fault", MUTANTS)
def test_a_fault_comes_to_light(server, fault):
    right, wrong = MUTANTS[fault]
    assert any(right in script.source for script in SCRIPTS), "the scripts have changed: put the fault in elsewhere"
    steered = Steered(server.url, lambda source: source.replace(right, wrong))
    with pytest.raises((AssertionError, ResponseError)):
        run(steered, 150, repeatable=True, shrink=False)
    steered.close()
