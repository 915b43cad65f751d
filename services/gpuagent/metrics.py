"""The agent's metrics, read at each scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.gpuagent.energy.metrics import energy_metrics
from services.gpuagent.energy.node_accounts import NodeAccounts
from services.gpuagent.profile_drift.drift_watch import DriftWatch
from services.gpuagent.supervision.segments import Segments
from services.gpuagent.supervision.slice_sharing import SliceSharing
from services.kit.segment import SegmentState


@dataclass(frozen=True, slots=True, eq=False)
class AgentCollector(Collector):
    """Energy by GPU and segment, states and restarts of workers, errors of profiles."""

    accounts: NodeAccounts
    segments: Segments
    sharing: SliceSharing
    watch: DriftWatch

    def collect(self) -> Iterable[Metric]:
        """Yield the figures as they are now."""
        yield from energy_metrics(self.accounts.list())
        yield from self._workers()
        yield self._mps()
        yield self._profiles()

    def _workers(self) -> Iterator[Metric]:
        states = GaugeMetricFamily(
            "cinquefoil_segments", "Segments on the node, by state.", labels=["state"]
        )
        quarantined = GaugeMetricFamily(
            "cinquefoil_segment_quarantined",
            "1: every worker of the segment failed too often and is not started again.",
            labels=["segment", "model", "variant"],
        )
        restarts = CounterMetricFamily(
            "cinquefoil_worker_restarts",
            "Times a segment's workers were started again.",
            labels=["segment", "model", "variant"],
        )
        segments = self.segments.list()
        count = Counter(segment.state for segment in segments)
        for state in SegmentState:
            states.add_metric([state.name.lower()], count[state])
        for segment in segments:
            labels = [segment.spec.segment_id, segment.spec.model, segment.spec.variant]
            quarantined.add_metric(labels, segment.state is SegmentState.QUARANTINED)
            restarts.add_metric(labels, segment.restarts)
        yield from (states, quarantined, restarts)

    def _mps(self) -> Metric:
        restarts = CounterMetricFamily(
            "cinquefoil_mps_restarts",
            "Times the MPS control daemon of a slice did not answer and was started again.",
            labels=["slice_uuid"],
        )
        for uuid, number in self.sharing.restarts.items():
            restarts.add_metric([uuid], number)
        return restarts

    def _profiles(self) -> Metric:
        error = GaugeMetricFamily(
            "cinquefoil_profile_error_ratio",
            "What batches took over what their profile says, minus 1; 0.2: a fifth more.",
            labels=["model", "variant", "gpu", "slice", "batch_size", "processes", "quantity"],
        )
        for kind, track in sorted(self.watch.tracks.items()):
            labels = [str(value) for value in astuple(kind)]
            error.add_metric([*labels, "latency"], track.seen.latency_ratio - 1)
            error.add_metric([*labels, "energy"], track.seen.energy_ratio - 1)
        return error
