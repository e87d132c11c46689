"""Slots taken away by an annotation, as somebody on call does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis
from tests.cluster.test_operator import until

from distributed_semaphore import AsyncSemaphore, SlotLost

if TYPE_CHECKING:
    from tests.cluster.conftest import Resources, StartOperator

    from distributed_semaphore.testing import RedisServer

ANNOTATION = "semaphores.dev/release"


async def test_an_annotation_takes_slots_away_and_an_event_says_whose(
    dsem: Resources, redis_server: RedisServer, start_operator: StartOperator, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = start_operator(f"--redis={redis_server.url}", "--sweep=0.1", "--patch=0.1")
    dsem.apply("api", limit=3, lease="10m")
    dsem.ready("api")
    monkeypatch.setenv("POD_NAME", "worker-1")
    monkeypatch.setenv("POD_NAMESPACE", dsem.namespace)
    semaphore = AsyncSemaphore(f"{dsem.namespace}/api", redis=redis_server.url)
    by_fence, by_token, by_pod = [await semaphore.acquire() for _ in range(3)]
    async with Redis.from_url(redis_server.url, decode_responses=True) as redis:
        [token] = await redis.zrangebyscore(f"sem:{{{semaphore.name}}}:grants", by_token.fence, by_token.fence)

    async def order(text: str, reason: str) -> tuple[str, str]:
        """Annotate; give type and note of the one Event that comes of it."""
        dsem("annotate", "dsem", "api", f"{ANNOTATION}={text}")

        def said() -> list[tuple[str, str]]:
            return [(kind, note) for kind, why, note in dsem.events("api") if why == reason and repr(text) in note]

        await until(lambda: bool(said()))
        assert ANNOTATION not in dsem.get("api")["metadata"].get("annotations", {})
        [event] = said()
        return event

    for slot, text in ((by_fence, f"fence/{by_fence.fence}"), (by_token, f"token/{token}")):
        kind, note = await order(text, "ForceReleased")
        assert kind == "Normal"
        assert f"freed 1 slots and places of pod {dsem.namespace}/worker-1" in note
        assert "kubectl-annotate has asked" in note
        await until(lambda slot=slot: slot.lost)
        with pytest.raises(SlotLost, match="force-released"):
            slot.check()
    by_pod.check()
    assert "freed 1 " in (await order(f"pod/{dsem.namespace}/worker-1", "ForceReleased"))[1]
    await until(lambda: by_pod.lost)
    assert (await order("pod/worker-1", "ReleaseRefused"))[0] == "Warning", "it holds nothing any more"
    kind, note = await order("everything", "ReleaseRefused")
    assert kind == "Warning"
    assert "pod/NAME" in note, "it says what may be asked for"
    await until(lambda: dsem.status("api")["holders"] == 0)
    assert operator.metrics("semaphore_operator_freed_total") == {("pod",): 0, ("order",): 3}
