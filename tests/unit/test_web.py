from __future__ import annotations

import time

import aiohttp
import pytest

from semaphore_operator.record import Record
from semaphore_operator.settings import Settings
from semaphore_operator.web import SILENCE, Web


@pytest.mark.parametrize(
    ("seen", "livez", "readyz"),
    [
        pytest.param({}, 200, 503, id="has just started"),
        pytest.param({"kube_up": True, "sweeps": 1, "watching": True, "redis_up": True}, 200, 200, id="works"),
        pytest.param({"kube_up": True, "sweeps": 1, "watching": True}, 200, 200, id="Redis is away"),
        pytest.param({"kube_up": True, "sweeps": 1}, 200, 503, id="does not watch"),
        pytest.param({"leading": False, "standby": True}, 200, 200, id="stands by"),
        pytest.param({"leading": False}, 200, 503, id="cannot read the Lease"),
        pytest.param({"sweeps": 9, "watching": True}, 200, 503, id="cannot list"),
        pytest.param({"finished": time.monotonic() - SILENCE - 999}, 503, 503, id="hangs"),
    ],
)
async def test_probes_say_what_a_restart_or_the_traffic_would_have_to_know(seen, livez, readyz):
    # Made here: a record is as old as it is, and a minute may pass between the collection of tests and this one.
    web = Web(Settings(port=0, host="127.0.0.1"), Record(**seen))
    port = await web.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
            for path, expected in (("/livez", livez), ("/readyz", readyz), ("/metrics", 200), ("/", 404)):
                async with client.get(path) as answer:
                    assert (path, answer.status) == (path, expected)
    finally:
        await web.stop()
