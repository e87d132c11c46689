"""Metrics: collected from the last look at each semaphore, so that no series outlives its resource."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from distributed_semaphore.protocol.snapshot import WAIT_BUCKETS_MS
from semaphore_operator import __version__
from semaphore_operator.conditions import QUEUE_STUCK, who
from semaphore_operator.record import CAUSES, KINDS, REPAIRS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from semaphore_operator.record import Record

LABELS = ("namespace", "name")


class Metrics(Collector):
    """The metrics of `Record`; two labels a semaphore, so their number is that of the resources."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def collect(self) -> Iterator[Metric]:
        """Give every metric."""
        yield from self._semaphores()
        yield from self._operator()

    def _semaphores(self) -> Iterator[Metric]:
        gauges = {
            "limit": GaugeMetricFamily("semaphore_limit", "Slots that there are", labels=LABELS),
            "holders": GaugeMetricFamily("semaphore_holders", "Weight of the slots held", labels=LABELS),
            "waiting": GaugeMetricFamily("semaphore_waiting", "Requests in the queue", labels=LABELS),
            "oldest": GaugeMetricFamily(
                "semaphore_oldest_wait_seconds", "For how long the longest waiting waits; 0: nobody does", labels=LABELS
            ),
            "longest": GaugeMetricFamily(
                "semaphore_longest_hold_seconds",
                "For how long the longest held slot is held; 0: none is",
                labels=LABELS,
            ),
        }
        counters = {
            "granted": CounterMetricFamily("semaphore_granted", "Slots granted", labels=LABELS),
            "released": CounterMetricFamily("semaphore_released", "Slots given back", labels=LABELS),
            "expired": CounterMetricFamily("semaphore_expired", "Slots whose lease ran out", labels=LABELS),
            "abandoned": CounterMetricFamily("semaphore_abandoned", "Waiters whose process went silent", labels=LABELS),
            "left": CounterMetricFamily("semaphore_left", "Waiters that gave up", labels=LABELS),
            "refused": CounterMetricFamily("semaphore_refused", "Requests refused at once", labels=LABELS),
            "overdue": CounterMetricFamily("semaphore_overdue", "Waiters beyond maxWait", labels=LABELS),
            "reclaimed": CounterMetricFamily(
                "semaphore_reclaimed", "Slots that their holders put back after a loss of data", labels=LABELS
            ),
            "revoked": CounterMetricFamily("semaphore_revoked", "Slots and places taken away", labels=LABELS),
        }
        waits = HistogramMetricFamily("semaphore_wait_seconds", "How long the granted had waited", labels=LABELS)
        conditions = GaugeMetricFamily(
            "semaphore_condition",
            "1: the condition (type: Ready, RedisAvailable, QueueStuck, LongWait, HolderOverdue) is True, 0: not; "
            "reason as in the status",
            labels=(*LABELS, "type", "reason"),
        )
        # Of stuck queues only: there it stays the same, while that of a moving queue would be a new series each time.
        heads = GaugeMetricFamily(
            "semaphore_stuck_head_wait_seconds",
            "For how long the first in line of a stuck queue waits; head: who that is",
            labels=(*LABELS, "head"),
        )
        for seen in list(self._record.seen.values()):
            labels = (seen.resource.namespace, seen.resource.name)
            for condition in seen.status.conditions:
                conditions.add_metric((*labels, condition.type, condition.reason), float(condition.status == "True"))
            if (snapshot := seen.snapshot) is None:
                continue
            stuck = any(each.type == QUEUE_STUCK and each.status == "True" for each in seen.status.conditions)
            for head in snapshot.waiters[:1] if stuck else ():
                heads.add_metric((*labels, who(head.identity)), max(0.0, snapshot.server_time - head.since))
            oldest = snapshot.oldest_waiter_since
            gauges["limit"].add_metric(labels, snapshot.config.limit if snapshot.config else 0)
            gauges["holders"].add_metric(labels, snapshot.held)
            gauges["waiting"].add_metric(labels, snapshot.waiter_count)
            gauges["oldest"].add_metric(labels, max(0.0, snapshot.server_time - oldest) if oldest else 0.0)
            held_since = snapshot.holders[0].since if snapshot.holders else snapshot.server_time
            gauges["longest"].add_metric(labels, max(0.0, snapshot.server_time - held_since))
            for name, counter in counters.items():
                counter.add_metric(labels, getattr(snapshot.counters, name))
            waits.add_metric(labels, _buckets(snapshot.counters.waits), sum_value=snapshot.counters.waited_ms / 1000)
        yield from (*gauges.values(), *counters.values(), waits, conditions, heads)

    def _operator(self) -> Iterator[Metric]:
        record = self._record
        yield GaugeMetricFamily(
            "semaphore_operator_leader", "1: this process writes, 0: another holds the Lease", value=record.leading
        )
        # Who does not lead asks neither of them: 0 would be a false alarm where nobody does.
        redis = GaugeMetricFamily("semaphore_operator_redis_up", "1: Redis answered the last look", labels=())
        kubernetes = GaugeMetricFamily(
            "semaphore_operator_kubernetes_up", "1: the API server answered the last listing", labels=()
        )
        if record.leading:
            redis.add_metric((), record.redis_up)
            kubernetes.add_metric((), record.kube_up)
        yield from (redis, kubernetes)
        yield GaugeMetricFamily(
            "semaphore_operator_sweep_duration_seconds", "Duration of the last sweep", value=record.duration
        )
        yield CounterMetricFamily("semaphore_operator_sweeps", "Sweeps finished", value=record.sweeps)
        yield CounterMetricFamily("semaphore_operator_status_writes", "Status writes", value=record.patches)
        yield CounterMetricFamily(
            "semaphore_operator_configs_restored", "Configs that Redis had lost", value=record.restored
        )
        yield CounterMetricFamily(
            "semaphore_operator_reclaims_opened", "Reclaims opened as Redis was restarted", value=record.reopened
        )
        yield GaugeMetricFamily(
            "semaphore_operator_leftovers", "Semaphores in Redis without resource", value=record.leftovers
        )
        repairs = CounterMetricFamily(
            "semaphore_operator_repairs", f"Entries put right; kind is one of {', '.join(REPAIRS)}", labels=("kind",)
        )
        for kind in REPAIRS:
            repairs.add_metric((kind,), record.repaired[kind])
        yield repairs
        freed = CounterMetricFamily(
            "semaphore_operator_freed",
            f"Slots and places taken from clients; cause is one of {', '.join(CAUSES)}",
            labels=("cause",),
        )
        for cause in CAUSES:
            freed.add_metric((cause,), record.freed[cause])
        yield freed
        errors = CounterMetricFamily(
            "semaphore_operator_errors", f"Failures; kind is one of {', '.join(KINDS)}", labels=("kind",)
        )
        for kind, number in record.errors.items():
            errors.add_metric((kind,), number)
        yield errors
        yield InfoMetricFamily("semaphore_operator_build", "Version of the operator", value={"version": __version__})


def _buckets(waits: tuple[int, ...]) -> list[tuple[str, float]]:
    """Give the histogram as Prometheus has it: bounds in seconds, counts up to each."""
    bounds = [*(repr(bound / 1000) for bound in WAIT_BUCKETS_MS), "+Inf"]
    return list(zip(bounds, map(float, accumulate(waits)), strict=True))
