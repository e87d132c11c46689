"""The whole way of an alert: semaphores, operator, Prometheus with the chart's rules, Alertmanager, each a real one."""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, Any

from tests.cluster.conftest import eventually

from distributed_semaphore import AsyncSemaphore
from semaphore_operator.metrics import Metrics
from semaphore_operator.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cluster.conftest import Resources, StartOperator
    from tests.monitoring.conftest import Monitoring

    from distributed_semaphore.testing import RedisServer

# A queue that nobody gets on in, one that moves (two minutes without a grant would be a fault), one that is to stand.
SPECS: dict[str, dict[str, Any]] = {
    "stuck": {"limit": 1, "alerts": {"queueStuckAfter": "1s"}},
    "busy": {"limit": 1, "alerts": {"queueStuckAfter": "1h", "longWaitAfter": "1h"}},
    "paused": {"limit": 1, "state": "Paused", "alerts": {"queueStuckAfter": "1s"}},
}
SUFFIXES = {"counter": ("_total",), "info": ("_info",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}


def exposed() -> set[str]:
    """Names of every series that the operator may expose."""
    return {family.name + suffix for family in Metrics(Record()).collect() for suffix in SUFFIXES[family.type]}


def queries(dashboard: Any) -> list[str]:
    """Every query of the dashboard, with its variables as they are when everything is selected."""
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for name, value in (("$__rate_interval", "1m"), ("$namespace", ".*"), ("$name", ".*")):
        asked = [query.replace(name, value) for query in asked]
    return asked


def test_the_dashboard_asks_for_metrics_that_there_are(dashboard: Any) -> None:
    asked = {name for query in queries(dashboard) for name in re.findall(r"\bsemaphore_\w+", query)}
    variables = [each["query"] for each in dashboard["templating"]["list"]]
    asked |= {name for query in variables for name in re.findall(r"\bsemaphore_\w+", query)}
    assert asked
    assert asked - exposed() == set()
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


async def test_alertmanager_gets_the_stuck_queue_and_nothing_else(
    dsem: Resources,
    redis_server: RedisServer,
    start_operator: StartOperator,
    monitor: Callable[[int], Monitoring],
    dashboard: Any,
) -> None:
    """mimir#2625, kueue#6496, #10897: one alert, which names the semaphore, its first in line, and what to do."""
    namespace = dsem.namespace
    operator = start_operator(f"--redis={redis_server.url}", f"--namespaces={namespace}", "--sweep=0.2", "--patch=0.2")
    for name, spec in SPECS.items():
        dsem.apply(name, **spec)
    dsem.ready(*SPECS)
    semaphores = {name: AsyncSemaphore(f"{namespace}/{name}", redis=redis_server.url) for name in SPECS}
    held = [await semaphores[name].acquire() for name in ("stuck", "busy")]
    waiting = {name: asyncio.create_task(semaphore.acquire()) for name, semaphore in semaphores.items()}
    try:
        monitoring = await asyncio.to_thread(monitor, operator.port)

        def seen(expression: str) -> bool:
            return bool(monitoring.query(expression))

        stuck = 'semaphore_condition{type="QueueStuck", name="paused", reason="Paused"} == 1'
        await asyncio.to_thread(eventually, lambda: seen(stuck), 60)
        await asyncio.to_thread(eventually, lambda: seen('semaphore_waiting{name="busy"} == 1'), 60)
        await asyncio.to_thread(eventually, lambda: len(monitoring.alerts()) > 0, 60)
        [alert] = await asyncio.to_thread(monitoring.alerts)
        assert alert["labels"] == {
            "alertname": "SemaphoreQueueStuck",
            "namespace": namespace,
            "name": "stuck",
            "severity": "critical",
        }
        said = alert["annotations"]
        assert f" {os.getpid()} on " in said["head"]
        assert said["reason"] == "HoldersNotReleasing"
        assert said["runbook_url"] == "docs/runbooks.md#semaphorequeuestuck"
        assert f"{namespace}/stuck" in said["summary"]
        assert f"kubectl -n {namespace} describe dsem stuck" in said["description"]

        # Every panel has an answer, but those of rates of what has not happened.
        for query in queries(dashboard):
            assert await asyncio.to_thread(monitoring.query, query) or "rate(" in query, query

        # It is over when the queue moves.
        assert await semaphores["stuck"].release(held[0])
        await waiting["stuck"]
        await asyncio.to_thread(eventually, lambda: monitoring.alerts() == [], 60)
    finally:
        for task in waiting.values():
            task.cancel()
        for outcome in await asyncio.gather(*waiting.values(), return_exceptions=True):
            if not isinstance(outcome, BaseException):
                outcome.give_back()
        for slot in held:
            slot.give_back()
