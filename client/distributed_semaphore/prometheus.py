"""Metrics of this process's semaphores for prometheus-client (extra `prometheus`).

    from distributed_semaphore import prometheus
    prometheus.instrument()

Once a process, at its start; with prometheus-client's multiprocess mode in each of them. Every metric has the label
`semaphore`, so there are as many series as the process uses semaphores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from distributed_semaphore._arguments import check_kind
from distributed_semaphore._listeners import BUCKETS, Watch, add_listener, remove_listener

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
except ImportError:
    raise ImportError(
        "metrics take the prometheus-client package: pip install 'distributed-semaphore[prometheus]'"
    ) from None

if TYPE_CHECKING:
    from collections.abc import Callable

    from distributed_semaphore._request import Slot

__all__ = ["instrument"]


def instrument(registry: CollectorRegistry = REGISTRY) -> Callable[[], None]:
    """Count what this process does with its semaphores from now on. Nothing is asked of Redis for it.

    Returns:
        A function that takes the metrics out of the registry again.

    Raises:
        ValueError: the registry has these metrics already, or is none (`InvalidArgument`).
    """
    check_kind("registry", registry, CollectorRegistry)
    metrics = _Metrics(registry)
    add_listener(metrics.watch)

    def remove() -> None:
        remove_listener(metrics.watch)
        for metric in (metrics.waiting, metrics.held, metrics.wait, metrics.hold, metrics.lost, metrics.refused):
            registry.unregister(metric)

    return remove


class _Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.waiting = Gauge(
            "semaphore_client_waiting",
            "Requests of this process without a slot yet",
            ["semaphore"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.held = Gauge(
            "semaphore_client_held",
            "Weight of the slots that this process holds",
            ["semaphore"],
            registry=registry,
            multiprocess_mode="livesum",
        )
        self.wait = Histogram(
            "semaphore_client_wait_seconds",
            "How long requests that were granted had waited",
            ["semaphore"],
            registry=registry,
            buckets=BUCKETS,
        )
        self.hold = Histogram(
            "semaphore_client_hold_seconds",
            "How long slots were held, until their release or loss",
            ["semaphore"],
            registry=registry,
            buckets=BUCKETS,
        )
        self.lost = Counter("semaphore_client_lost", "Slots lost while held", ["semaphore"], registry=registry)
        self.refused = Counter(
            "semaphore_client_refused",
            "Requests that got no slot; reason is the error: AcquireTimeout, WouldWait, QueueFull, Closed, ...",
            ["semaphore", "reason"],
            registry=registry,
        )

    def watch(self, name: str, weight: int) -> Watch:
        self.waiting.labels(name).inc()
        return _Watch(self, name, weight)


class _Watch(Watch):
    __slots__ = ("_metrics", "_name", "_weight")

    def __init__(self, metrics: _Metrics, name: str, weight: int) -> None:
        self._metrics = metrics
        self._name = name
        self._weight = weight

    def granted(self, slot: Slot) -> None:
        self._metrics.waiting.labels(self._name).dec()
        self._metrics.held.labels(self._name).inc(self._weight)
        self._metrics.wait.labels(self._name).observe(slot.waited)

    def refused(self, error: BaseException) -> None:
        self._metrics.waiting.labels(self._name).dec()
        self._metrics.refused.labels(self._name, type(error).__name__).inc()

    def released(self, held: float) -> None:
        self._metrics.held.labels(self._name).dec(self._weight)
        self._metrics.hold.labels(self._name).observe(held)

    def lost(self, held: float) -> None:
        self.released(held)
        self._metrics.lost.labels(self._name).inc()
