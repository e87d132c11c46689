"""Ten thousand waiters on one semaphore: what the object says of them, and how large it gets."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from redis.asyncio import Redis
from tests.cluster.evidence import sweeps, until
from tests.redis.calls import GRANTED
from tests.redis.conftest import Process

if TYPE_CHECKING:
    from tests.cluster.conftest import Resources, StartOperator

    from distributed_semaphore.testing import RedisServer

CLIENTS: Final = 10
EACH: Final = 1000
"""Waiters of one client."""
NAME: Final = "s" * 253
"""Of the resource: as long as it may be."""
PATH: Final = "/apis/semaphores.dev/v1alpha1/namespaces/{}/distributedsemaphores/{}"


def identity(client: str) -> str:
    """Give what a client says of itself, each name as long as Kubernetes takes it."""
    known = {"pod": client.ljust(253, "p"), "namespace": "n" * 63, "uid": "u" * 36, "pid": "4194304"}
    return json.dumps(known | {name: client.ljust(63, "x") for name in ("node", "app", "host")})


async def crowd(redis: Redis, name: str) -> None:
    """Let ten clients take a slot each, and ten others a thousand places each, of which one is in front."""
    holders = [Process(redis, name, f"holder{number}") for number in range(CLIENTS)]
    waiters = [Process(redis, name, f"waiter{number}") for number in range(CLIENTS)]
    for process in [*holders, *waiters]:
        await process.renew(identity=identity(process.client))
        # In place of heartbeats, which a loaded machine might delay.
        await redis.zadd(f"{process.keys.prefix}clients", {process.client: 2**52})
        token = process.token()
        if (await process.ask(token))[0] == GRANTED:
            await process.renew((token,), identity="")
    for process in waiters:
        tokens = [process.token() for _ in range(EACH - 1)]
        for some in (tokens[:500], tokens[500:]):
            await process.apply(acquire=tuple((token, "", 0) for token in some))


async def test_ten_thousand_waiters_are_counted_within_a_sweep_in_an_object_below_16_kib(
    dsem: Resources, redis_server: RedisServer, start_operator: StartOperator
) -> None:
    """With every name as long as may be, every alert on, and a spec that has every field."""
    operator = start_operator(f"--redis={redis_server.url}", "--sweep=0.5", "--patch=0")
    lengths = {"lease": "59m59s999ms", "maxWait": "23h59m59s999ms", "maxHold": "1s"}
    alerts = {"queueStuckAfter": "1s", "longWaitAfter": "23h59m59s999ms"}
    counts = {"limit": CLIENTS, "maxWaiting": 100_000, "perProcessLimit": 100_000}
    await asyncio.to_thread(
        dsem.apply, NAME, name=NAME, state="Active", deletionPolicy="Delete", alerts=alerts, **lengths, **counts
    )
    await asyncio.to_thread(dsem.ready, NAME)
    async with Redis.from_url(redis_server.url, decode_responses=True) as redis:
        await crowd(redis, f"{dsem.namespace}/{NAME}")
        await sweeps(operator, 2)  # of which one began after the last had come
        status = await asyncio.to_thread(dsem.status, NAME)
        assert (status["holders"], status["waiting"]) == (CLIENTS, CLIENTS * EACH)

        def conditions() -> dict[str, tuple[str, str]]:
            return dsem.conditions(NAME)

        await until(lambda: conditions()["QueueStuck"][0] == conditions()["HolderOverdue"][0] == "True")
        stored = await asyncio.to_thread(dsem.kubectl, "get", "--raw", PATH.format(dsem.namespace, NAME))
        shown: dict[str, Any] = json.loads(stored)["status"]
    assert len(stored.encode()) < 16 * 1024
    assert [party["pod"][:7] for party in shown["heldBy"]] == [f"holder{number}" for number in range(CLIENTS)]
    assert [party["pod"][:7] for party in shown["waitingLine"]] == [f"waiter{number}" for number in range(CLIENTS)]
    assert {len(party["pod"]) for party in shown["heldBy"] + shown["waitingLine"]} == {253}
