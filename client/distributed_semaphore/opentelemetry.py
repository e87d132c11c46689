"""Spans and metrics of this process's semaphores for OpenTelemetry (extra `otel`).

    from distributed_semaphore import opentelemetry
    opentelemetry.instrument()

Once a process, at its start. Each request makes a span `acquire NAME`, and each slot a span `hold NAME`, both children
of the span in which the slot was asked for. The metrics are those of `distributed_semaphore.prometheus`, under names
that an exporter to Prometheus turns into the same ones.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from distributed_semaphore._arguments import check_kind
from distributed_semaphore._errors import SemaphoreError, WouldWait
from distributed_semaphore._listeners import BUCKETS, Watch, add_listener, remove_listener

try:
    from opentelemetry import context, metrics, trace
except ImportError:
    raise ImportError("spans take OpenTelemetry's API: pip install 'distributed-semaphore[otel]'") from None

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import Meter, MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

    from distributed_semaphore._request import Slot

__all__ = ["instrument"]


def instrument(
    tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> Callable[[], None]:
    """Trace and count what this process does with its semaphores from now on. Nothing is asked of Redis for it.

    Args:
        tracer_provider: by default the global one.
        meter_provider: by default the global one.

    Returns:
        A function that ends it: requests made after that are neither traced nor counted.

    Raises:
        InvalidArgument: a provider is none.
    """
    if tracer_provider is not None:
        check_kind("tracer_provider", tracer_provider, trace.TracerProvider)
    if meter_provider is not None:
        check_kind("meter_provider", meter_provider, metrics.MeterProvider)
    scope, number = "distributed_semaphore", version("distributed-semaphore")
    tracer = trace.get_tracer(scope, number, tracer_provider)
    instruments = _Instruments(metrics.get_meter(scope, number, meter_provider))

    def watch(name: str, weight: int) -> Watch:
        return _Watch(tracer, instruments, name, weight)

    add_listener(watch)
    return lambda: remove_listener(watch)


class _Instruments:
    def __init__(self, meter: Meter) -> None:
        self.waiting = meter.create_up_down_counter(
            "semaphore.client.waiting", "{request}", "Requests of this process without a slot yet"
        )
        self.held = meter.create_up_down_counter(
            "semaphore.client.held", "{slot}", "Weight of the slots that this process holds"
        )
        self.wait = meter.create_histogram(
            "semaphore.client.wait",
            "s",
            "How long requests that were granted had waited",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self.hold = meter.create_histogram(
            "semaphore.client.hold",
            "s",
            "How long slots were held, until their release or loss",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )
        self.lost = meter.create_counter("semaphore.client.lost", "{slot}", "Slots lost while held")
        self.refused = meter.create_counter(
            "semaphore.client.refused", "{request}", "Requests that got no slot; error.type is the error"
        )


class _Watch(Watch):
    __slots__ = ("_context", "_instruments", "_labels", "_span", "_tracer", "_weight")

    def __init__(self, tracer: Tracer, instruments: _Instruments, name: str, weight: int) -> None:
        self._tracer = tracer
        self._instruments = instruments
        self._weight = weight
        self._labels = {"semaphore.name": name}
        self._context = context.get_current()
        self._span = tracer.start_span(f"acquire {name}", attributes={**self._labels, "semaphore.weight": weight})
        instruments.waiting.add(1, self._labels)

    def granted(self, slot: Slot) -> None:
        self._instruments.waiting.add(-1, self._labels)
        self._instruments.held.add(self._weight, self._labels)
        self._instruments.wait.record(slot.waited, self._labels)
        self._span.end()
        self._span = self._tracer.start_span(
            f"hold {slot.name}",
            self._context,
            attributes={**self._labels, "semaphore.weight": self._weight, "semaphore.fence": slot.fence},
        )

    def refused(self, error: BaseException) -> None:
        kind = type(error).__name__
        self._instruments.waiting.add(-1, self._labels)
        self._instruments.refused.add(1, {**self._labels, "error.type": kind})
        self._span.set_attribute("error.type", kind)
        if isinstance(error, SemaphoreError) and not isinstance(error, WouldWait):
            self._span.set_status(trace.StatusCode.ERROR, str(error))
        self._span.end()

    def released(self, held: float) -> None:
        self._instruments.held.add(-self._weight, self._labels)
        self._instruments.hold.record(held, self._labels)
        self._span.end()

    def lost(self, held: float) -> None:
        self._instruments.lost.add(1, self._labels)
        self._span.set_attribute("error.type", "SlotLost")
        self._span.set_status(trace.StatusCode.ERROR, "the slot was lost")
        self.released(held)
