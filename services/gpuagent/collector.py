"""The agent's metrics, read from the accounts when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.gpuagent.accounts import Accounts
from services.gpuagent.drift_watch import DriftWatch
from services.gpuagent.segments import Segments


class AgentCollector(Collector):
    """Energy by GPU and segment, restarts of workers, errors of profiles."""

    def __init__(self, accounts: Accounts, segments: Segments, watch: DriftWatch) -> None:
        self._accounts = accounts
        self._segments = segments
        self._watch = watch

    def collect(self) -> Iterable[Metric]:
        """Yield the figures as they are now."""
        yield from self._energy()
        restarts = CounterMetricFamily(
            "cinquefoil_worker_restarts",
            "Times a segment's workers were started again.",
            labels=["segment", "model", "variant"],
        )
        for segment in self._segments.list():
            spec = segment.spec
            restarts.add_metric([spec.segment_id, spec.model, spec.variant], segment.restarts)
        yield restarts
        yield self._profiles()

    def _energy(self) -> Iterator[Metric]:
        gpu_j = CounterMetricFamily(
            "cinquefoil_gpu_energy_joules", "Metered energy.", labels=["gpu_uuid", "method"]
        )
        gpu_w = GaugeMetricFamily("cinquefoil_gpu_power_watts", "Power now.", labels=["gpu_uuid"])
        segment_j = CounterMetricFamily(
            "cinquefoil_segment_energy_joules",
            "Active energy attributed to a segment.",
            labels=["gpu_uuid", "segment", "model", "variant"],
        )
        for uuid, account in self._accounts.list().items():
            gpu_j.add_metric([uuid, account.method], account.total_j)
            gpu_w.add_metric([uuid], account.power_w)
            for name, entry in account.segments.items():
                segment_j.add_metric([uuid, name, entry.model, entry.variant], entry.active_j)
        yield from (gpu_j, gpu_w, segment_j)

    def _profiles(self) -> Metric:
        error = GaugeMetricFamily(
            "cinquefoil_profile_error_ratio",
            "What batches took over what their profile says, minus 1; 0.2: a fifth more.",
            labels=["model", "variant", "gpu", "slice", "batch_size", "processes", "quantity"],
        )
        for kind, track in sorted(self._watch.tracks.items()):
            labels = [str(value) for value in astuple(kind)]
            error.add_metric([*labels, "latency"], track.seen.latency_ratio - 1)
            error.add_metric([*labels, "energy"], track.seen.energy_ratio - 1)
        return error


@contextmanager
def collected(
    accounts: Accounts,
    segments: Segments,
    watch: DriftWatch,
    registry: CollectorRegistry = REGISTRY,
) -> Iterator[None]:
    """Expose the agent's metrics while the block runs."""
    collector = AgentCollector(accounts, segments, watch)
    registry.register(collector)
    try:
        yield
    finally:
        registry.unregister(collector)
