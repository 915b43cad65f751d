"""The agent's metrics, read at each scrape."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cinquefoil.gpuagent.v1.records import SegmentState
from services.gpuagent.clock_loop.core.decide import Move
from services.gpuagent.clock_loop.core.governor import Governor
from services.gpuagent.core.gpu_info import GpuReading, SliceReading
from services.gpuagent.energy.core.account import Account
from services.gpuagent.energy.node_accounts import NodeAccounts
from services.gpuagent.profile_drift.core.drift import DriftTrack, SegmentKind
from services.gpuagent.profile_drift.drift_watch import DriftWatch
from services.gpuagent.supervision.managed_node import ManagedNode
from services.gpuagent.supervision.segments import Segments
from services.kit.config import OpenAiRuntime

_COUNTERS: Final = {
    "cinquefoil_clock_decisions": "Decisions of the clock loop.",
    "cinquefoil_gpu_energy_joules": (
        "Energy of a whole GPU, idle energy included. Method: counter (the GPU counts it), "
        "integrated (from power samples), rapl (the CPU counts it), model (not measured)."
    ),
    "cinquefoil_gpu_energy_steps_refused": (
        "Steps of a GPU's meter beyond what its power limit allows; they are not billed."
    ),
    "cinquefoil_gpu_idle_energy_joules": (
        "Part of a GPU's energy that it draws with nothing running: idle power of its type x time."
    ),
    "cinquefoil_gpu_unattributed_energy_joules": (
        "Part of a GPU's active energy drawn while no segment was busy: work of other programs, or "
        "an idle power that differs from its type's."
    ),
    "cinquefoil_mps_restarts": (
        "Times the MPS control daemon of a slice did not answer and was started again."
    ),
    "cinquefoil_segment_busy_seconds": (
        "Time that a segment's workers were busy, summed over them."
    ),
    "cinquefoil_segment_energy_joules": (
        "Active energy attributed to a segment. MIG has no energy counter per slice: the whole "
        "GPU's energy less its idle energy is split by busy time x streaming multiprocessors "
        "(Kepler's rule); on simulated GPUs, by what the profile says."
    ),
    "cinquefoil_segment_idle_share_joules": (
        "Idle energy shared to a segment as nodes.<n>.idle_share says; a part of the GPU's idle "
        "energy, never of the segment's active energy."
    ),
    "cinquefoil_segment_receipt_joules": (
        "Energy that a segment's workers stated in receipts; it follows the active energy "
        "attributed to the segment, a window later."
    ),
    "cinquefoil_worker_restarts": "Times a segment's workers were started again.",
}
_GAUGES: Final = {
    "cinquefoil_energy_conservation_error_ratio": (
        "Self-check: |idle + unattributed + segments' active energy - metered energy| / metered "
        "energy, over the last window and since the account began. Above 0.01, do not trust it."
    ),
    "cinquefoil_gpu_clock_hertz": "SM clock that the clock loop requests.",
    "cinquefoil_gpu_info": "1: a GPU, by its number on its node and its type.",
    "cinquefoil_gpu_power_watts": "Power of a whole GPU now.",
    "cinquefoil_gpu_sm_clock_hertz": "SM clock of a GPU now.",
    "cinquefoil_model_slack_ratio": (
        "Share of the latency objective that is left, as the clock loop sees it."
    ),
    "cinquefoil_profile_error_ratio": (
        "Measured over profiled latency or energy of batches, minus 1; 0.2: a fifth more."
    ),
    "cinquefoil_receipt_energy_ratio": (
        "Energy stated in receipts / active energy attributed, since the account began; 1: they "
        "add up."
    ),
    "cinquefoil_segment_quarantined": (
        "1: every worker of the segment failed too often and is not started again."
    ),
    "cinquefoil_segments": "Segments on the node, by state.",
    "cinquefoil_server_kv_cache_ratio": (
        "Share of the KV cache that is in use, at the fullest of a segment's external servers."
    ),
    "cinquefoil_server_waiting_requests": (
        "Requests that wait at the external servers of a language model's segment."
    ),
    "cinquefoil_slice_info": "1: a slice and what runs on it, with the labels of dcgm-exporter.",
    "cinquefoil_slice_memory_bytes": "Memory of a slice.",
    "cinquefoil_slice_memory_used_bytes": (
        "Memory of a slice that is in use, as the driver reports it."
    ),
}
_GPU: Final = ("gpu_uuid",)
_SEGMENT: Final = ("segment", "model", "variant")
_KIND: Final = ("model", "variant", "gpu", "slice", "batch_size", "processes", "quantity")
_SLICE: Final = ("gpu_uuid", "slice")
_DCGM: Final = ("UUID", "GPU_I_ID", "GPU_I_PROFILE")
"""Labels of NVIDIA's dcgm-exporter, so that its metrics can be joined with ours."""

Rows = Iterable[tuple[Sequence[str], Any]]
"""Values, or their owners, by labels."""


@dataclass(frozen=True, slots=True, eq=False)
class AgentCollector(Collector):
    """Energy by GPU and segment, workers, MPS, errors of profiles, clocks.

    Attributes:
        node: The node.
        accounts: Its energy accounts.
        watch: Profiles and their errors.
        governors: The clock loop's, by GPU; empty: there is no loop.
    """

    node: ManagedNode
    accounts: NodeAccounts
    watch: DriftWatch
    governors: Mapping[str, Governor]

    def collect(self) -> Iterable[Metric]:
        """Yield the values as they are now."""
        accounts, segments = self.accounts.list(), self.node.segments
        yield from _gpu_energy(accounts)
        meters = (((uuid,), meter) for uuid, meter in self.accounts.meters.items())
        yield _metric("cinquefoil_gpu_energy_steps_refused", _GPU, meters, "refused")
        yield from _segment_energy(accounts)
        yield from _workers(segments)
        yield from _model_servers(segments)
        restarts = (((uuid,), number) for uuid, number in segments.sharing.restarts.items())
        yield _metric("cinquefoil_mps_restarts", ("slice_uuid",), restarts)
        yield _metric("cinquefoil_profile_error_ratio", _KIND, _profile_errors(self.watch.tracks))
        yield from _clocks(self.governors)
        yield from _devices(self.node.name, self.node.device.readings(), segments)


def _gpu_energy(accounts: Mapping[str, Account]) -> Iterator[Metric]:
    by_method = (((uuid, each.method), each.total_j) for uuid, each in accounts.items())
    yield _metric("cinquefoil_gpu_energy_joules", (*_GPU, "method"), by_method)
    gpus = [((uuid,), account) for uuid, account in accounts.items()]
    yield _metric("cinquefoil_gpu_idle_energy_joules", _GPU, gpus, "idle_j")
    yield _metric("cinquefoil_gpu_unattributed_energy_joules", _GPU, gpus, "unattributed_j")
    yield _metric("cinquefoil_gpu_power_watts", _GPU, gpus, "power_w")
    yield _metric("cinquefoil_receipt_energy_ratio", _GPU, gpus, "receipt_ratio")
    errors = (
        ((uuid, over), error)
        for uuid, each in accounts.items()
        for over, error in (("window", each.window_error_ratio), ("all", each.error_ratio))
    )
    yield _metric("cinquefoil_energy_conservation_error_ratio", (*_GPU, "over"), errors)


def _segment_energy(accounts: Mapping[str, Account]) -> Iterator[Metric]:
    entries = [
        ((uuid, entry.slice, name, entry.model, entry.variant), entry)
        for uuid, account in accounts.items()
        for name, entry in account.segments.items()
    ]
    labels = (*_SLICE, *_SEGMENT)
    yield _metric("cinquefoil_segment_energy_joules", labels, entries, "active_j")
    yield _metric("cinquefoil_segment_idle_share_joules", labels, entries, "idle_share_j")
    yield _metric("cinquefoil_segment_busy_seconds", labels, entries, "busy_s")
    yield _metric("cinquefoil_segment_receipt_joules", labels, entries, "granted_j")


def _workers(running: Segments) -> Iterator[Metric]:
    segments = [
        ((each.spec.segment_id, each.spec.model, each.spec.variant), each)
        for each in running.list()
    ]
    count = Counter(each.state for _, each in segments)
    states = (((state.name.lower(),), count[state]) for state in SegmentState)
    yield _metric("cinquefoil_segments", ("state",), states)
    given_up = ((labels, each.state is SegmentState.QUARANTINED) for labels, each in segments)
    yield _metric("cinquefoil_segment_quarantined", _SEGMENT, given_up)
    yield _metric("cinquefoil_worker_restarts", _SEGMENT, segments, "restarts")


def _model_servers(running: Segments) -> Iterator[Metric]:
    servers = [
        ((each.spec.segment_id, each.spec.model, each.spec.variant), each.slots())
        for each in running.running
        if isinstance(each.config.worker.runtime, OpenAiRuntime)
    ]
    waiting = ((labels, sum(slot.server_waiting for slot in slots)) for labels, slots in servers)
    yield _metric("cinquefoil_server_waiting_requests", _SEGMENT, waiting)
    fullest = (
        (labels, max(slot.server_kv_cache_ratio for slot in slots)) for labels, slots in servers
    )
    yield _metric("cinquefoil_server_kv_cache_ratio", _SEGMENT, fullest)


def _profile_errors(tracks: Mapping[SegmentKind, DriftTrack]) -> Rows:
    for kind, track in sorted(tracks.items()):
        labels = [str(value) for value in astuple(kind)]
        yield (*labels, "latency"), track.seen.latency_ratio - 1
        yield (*labels, "energy"), track.seen.energy_ratio - 1


def _clocks(governors: Mapping[str, Governor]) -> Iterator[Metric]:
    clocks = (((uuid,), each.clock_mhz * 1e6) for uuid, each in governors.items())
    yield _metric("cinquefoil_gpu_clock_hertz", _GPU, clocks)
    moves = (((uuid, move), each.moves[move]) for uuid, each in governors.items() for move in Move)
    yield _metric("cinquefoil_clock_decisions", (*_GPU, "decision"), moves)
    slack = (
        ((uuid, model), left)
        for uuid, each in governors.items()
        for model, left in each.slack.items()
    )
    yield _metric("cinquefoil_model_slack_ratio", (*_GPU, "model"), slack)


def _devices(node: str, read: Sequence[GpuReading], running: Segments) -> Iterator[Metric]:
    gpus = [each.gpu for each in read]
    types = (
        ((node, str(gpu.index), gpu.uuid, gpu.model.name, gpu.model.product_name), 1)
        for gpu in gpus
    )
    yield _metric("cinquefoil_gpu_info", ("node", "gpu", *_GPU, "type", "product"), types)
    named = (
        ((node, str(each.gpu.index), *_names(each, entry, running)), 1)
        for each in read
        for entry in each.slices
    )
    labels = ("node", "gpu", *_SLICE, "mig_uuid", *_SEGMENT, *_DCGM)
    yield _metric("cinquefoil_slice_info", labels, named)
    clocks = (((gpu.uuid,), gpu.clock_mhz * 1e6) for gpu in gpus)
    yield _metric("cinquefoil_gpu_sm_clock_hertz", _GPU, clocks)
    slices = [((r.gpu.uuid, str(each.placement)), each) for r in read for each in r.slices]
    yield _metric("cinquefoil_slice_memory_bytes", _SLICE, slices, "memory_bytes")
    known = [(place, each) for place, each in slices if each.used_bytes is not None]
    yield _metric("cinquefoil_slice_memory_used_bytes", _SLICE, known, "used_bytes")


def _names(read: GpuReading, of: SliceReading, running: Segments) -> tuple[str, ...]:
    """Return a slice's labels from `gpu_uuid` on; of two segments on it, the older one's."""
    here = running.at(read.gpu.uuid, of.placement)
    runs = (here[0].segment_id, here[0].model, here[0].variant) if here else ("", "", "")
    number = "" if of.instance_id is None else str(of.instance_id)
    profile = of.placement.profile if number else ""
    uuid = read.gpu.uuid
    return (uuid, str(of.placement), of.uuid, *runs, uuid, number, profile)


def _metric(name: str, labels: Sequence[str], rows: Rows, attribute: str = "") -> Metric:
    """Return one of the metrics above with its values, or with that attribute of them."""
    family: CounterMetricFamily | GaugeMetricFamily
    if name in _COUNTERS:
        family = CounterMetricFamily(name, _COUNTERS[name], labels=labels)
    else:
        family = GaugeMetricFamily(name, _GAUGES[name], labels=labels)
    for values, value in rows:
        family.add_metric(values, getattr(value, attribute) if attribute else value)
    return family
