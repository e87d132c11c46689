"""Listeners, and the metrics and spans that are made with them, on the real libraries."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from tests.redis.conftest import Twin, said

from distributed_semaphore import AcquireTimeout, AsyncSemaphore, Watch, add_listener, opentelemetry, remove_listener
from distributed_semaphore import prometheus as metrics
from distributed_semaphore.protocol import revoke

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from redis.asyncio import Redis

    from distributed_semaphore import Slot
    from distributed_semaphore.testing import RedisServer


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(15):
        while not condition():
            await asyncio.sleep(0.01)


async def live_through_everything(twin: Twin, redis: Redis) -> None:
    """Release one slot of weight 2, refuse, time out and cancel while another is held, and lose that."""
    assert await said(twin.release(await said(twin.acquire(weight=2))))
    slot = await said(twin.acquire(weight=2))
    assert await said(twin.try_acquire()) is None
    with pytest.raises(AcquireTimeout):
        await said(twin.acquire(timeout=0.05))
    cancelled = asyncio.create_task(AsyncSemaphore(twin.name, redis=twin._url).acquire())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.wait([cancelled])
    await revoke(redis, slot.name, [slot.token])
    await until(lambda: slot.lost)
    await said(twin.release(slot))


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    registry = CollectorRegistry()
    remove = metrics.instrument(registry)
    yield registry
    remove()
    assert generate_latest(registry) == b""


async def test_prometheus_counts_what_happens_to_slots(registry: CollectorRegistry, twin: Twin, redis: Redis) -> None:
    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"semaphore_client_{name}", {"semaphore": twin.name, **labels})

    assert value("held") is None
    slot = await said(twin.acquire(weight=2))
    waiter = asyncio.create_task(AsyncSemaphore(twin.name, redis=twin._url).acquire())
    await asyncio.sleep(0)
    assert (value("held"), value("waiting")) == (2, 1)
    await said(twin.release(slot))
    await said(twin.release(await waiter))
    assert (value("held"), value("waiting"), value("wait_seconds_count"), value("hold_seconds_count")) == (0, 0, 2, 2)
    await live_through_everything(twin, redis)
    await until(lambda: value("lost_total") == 1)
    assert (value("held"), value("waiting"), value("wait_seconds_count"), value("hold_seconds_count")) == (0, 0, 4, 4)
    refused = {
        sample.labels["reason"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "semaphore_client_refused_total"
    }
    assert refused == {"WouldWait": 1, "AcquireTimeout": 1, "CancelledError": 1}


async def test_opentelemetry_traces_and_counts_the_same(twin: Twin, redis: Redis) -> None:
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers, meters = TracerProvider(), MeterProvider([reader])
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    remove = opentelemetry.instrument(tracers, meters)
    with tracers.get_tracer("of the program").start_as_current_span("job") as job:
        await live_through_everything(twin, redis)
    remove()
    await until(lambda: len(exporter.get_finished_spans()) == 8)
    spans = [span for span in exporter.get_finished_spans() if span.name != "job"]
    assert {span.parent.span_id for span in spans} == {job.get_span_context().span_id}
    told = [(span.name, (span.attributes or {}).get("error.type"), span.status.status_code) for span in spans]
    acquire, hold = f"acquire {twin.name}", f"hold {twin.name}"
    fine, wrong = trace.StatusCode.UNSET, trace.StatusCode.ERROR
    assert sorted(told, key=str) == sorted(
        [
            (acquire, None, fine),
            (hold, None, fine),
            (acquire, None, fine),
            (acquire, "WouldWait", fine),
            (acquire, "AcquireTimeout", wrong),
            (acquire, "CancelledError", fine),
            (hold, "SlotLost", wrong),
        ],
        key=str,
    )
    assert all(span.attributes["semaphore.fence"] for span in spans if span.name == hold)
    points = {
        (metric.name, point.attributes.get("error.type")): getattr(point, "count", None) or point.value
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if point.attributes["semaphore.name"] == twin.name
    }
    assert points == {
        ("semaphore.client.waiting", None): 0,
        ("semaphore.client.held", None): 0,
        ("semaphore.client.wait", None): 2,
        ("semaphore.client.hold", None): 2,
        ("semaphore.client.lost", None): 1,
        ("semaphore.client.refused", "WouldWait"): 1,
        ("semaphore.client.refused", "AcquireTimeout"): 1,
        ("semaphore.client.refused", "CancelledError"): 1,
    }
    tracers.shutdown()
    meters.shutdown()


class Failing(Watch):
    def granted(self, slot: Slot) -> None:
        raise ZeroDivisionError("granted")

    def refused(self, error: BaseException) -> None:
        raise ZeroDivisionError("refused")

    def released(self, held: float) -> None:
        raise ZeroDivisionError("released")

    def lost(self, held: float) -> None:
        raise ZeroDivisionError("lost")


async def test_a_listener_that_fails_harms_nobody(twin: Twin, redis: Redis, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a slot, nor another listener."""

    def fails(name: str, weight: int) -> Watch:
        raise ZeroDivisionError("asked")

    def watched(name: str, weight: int) -> Watch:
        return Failing()

    heard: list[tuple[str, int]] = []
    listeners = [fails, watched, lambda name, weight: heard.append((name, weight))]
    for listener in listeners:
        add_listener(listener)
    try:
        await live_through_everything(twin, redis)
        await until(lambda: {str(r.exc_info[1]) for r in caplog.records if r.exc_info} >= {"asked", "lost"})
    finally:
        for listener in listeners:
            remove_listener(listener)
    failures = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert set(failures) == {"asked", "granted", "refused", "released", "lost"}
    assert [weight for _, weight in heard] == [2, 2, 1, 1, 1]
    assert (await said(twin.statistics())).held == 0


async def test_a_listener_that_hangs_holds_up_no_renewal(twin: Twin, redis: Redis) -> None:
    told, go_on = threading.Event(), threading.Event()

    class Slow(Watch):
        def lost(self, held: float) -> None:
            told.set()
            go_on.wait(60)

    def slow(name: str, weight: int) -> Watch:
        return Slow()

    add_listener(slow)
    try:
        slot, other = await said(twin.acquire()), await said(twin.acquire())
        await revoke(redis, slot.name, [slot.token])
        assert await asyncio.to_thread(told.wait, 15)
        granted = other.deadline
        await until(lambda: other.deadline > granted + 2)
        assert not other.lost
    finally:
        go_on.set()
        remove_listener(slow)
    await said(twin.release(other))


def test_who_does_not_listen_cannot_stop_to() -> None:
    with pytest.raises(ValueError, match="not in list"):
        remove_listener(lambda name, weight: None)


WORKERS = """
import os, sys
from distributed_semaphore import Semaphore, prometheus
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

prometheus.instrument()
semaphore = Semaphore(sys.argv[1], redis=sys.argv[2], limit=9, lease=2)

def held():
    registry = CollectorRegistry()
    MultiProcessCollector(registry)
    return registry.get_sample_value("semaphore_client_held", {"semaphore": sys.argv[1]})

with semaphore.slot(weight=3):
    told, tell = os.pipe()
    go_on, let_go = os.pipe()
    child = os.fork()
    if not child:
        with semaphore.slot(weight=2):
            os.write(tell, b".")
            os.read(go_on, 1)
        os.write(tell, b".")
        os.read(go_on, 1)
        os._exit(0)
    os.read(told, 1)
    print(held())
    os.write(let_go, b".")
    os.read(told, 1)
    print(held())
    os.write(let_go, b".")
    os.waitpid(child, 0)
print(held())
"""


def test_forked_workers_are_counted_together_in_multiprocess_mode(
    server: RedisServer, name: str, tmp_path: Path
) -> None:
    """As under gunicorn: what a child has inherited is its parent's, and counts once."""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", WORKERS, name, server.url],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("5.0\n3.0\n0.0\n", "")
