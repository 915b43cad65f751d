"""The energy accounts as metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from services.gpuagent.energy.core.account import Account

_GPU = ("gpu_uuid",)
_SEGMENT = ("gpu_uuid", "slice", "segment", "model", "variant")


def energy_metrics(accounts: Mapping[str, Account]) -> Iterator[Metric]:
    """Yield what GPUs and segments drew, and how well it adds up.

    Args:
        accounts: By GPU.
    """
    yield from _of_gpus(accounts)
    yield from _of_segments(accounts)
    yield from _checks(accounts)


def _of_gpus(accounts: Mapping[str, Account]) -> Iterator[Metric]:
    total_j = CounterMetricFamily(
        "cinquefoil_gpu_energy_joules",
        "Energy of a whole GPU, idle energy included. Method: counter (the GPU counts it), "
        "integrated (from power samples), rapl (the CPU counts it), model (not measured).",
        labels=(*_GPU, "method"),
    )
    idle_j = CounterMetricFamily(
        "cinquefoil_gpu_idle_energy_joules",
        "Part of a GPU's energy that it draws with nothing running: idle power of its type x time.",
        labels=_GPU,
    )
    unattributed_j = CounterMetricFamily(
        "cinquefoil_gpu_unattributed_energy_joules",
        "Part of a GPU's active energy drawn while no segment was busy: work of other programs, or "
        "an idle power that differs from its type's.",
        labels=_GPU,
    )
    power_w = GaugeMetricFamily("cinquefoil_gpu_power_watts", "Power now.", labels=_GPU)
    for uuid, account in accounts.items():
        total_j.add_metric([uuid, account.method], account.total_j)
        idle_j.add_metric([uuid], account.idle_j)
        unattributed_j.add_metric([uuid], account.unattributed_j)
        power_w.add_metric([uuid], account.power_w)
    yield from (total_j, idle_j, unattributed_j, power_w)


def _of_segments(accounts: Mapping[str, Account]) -> Iterator[Metric]:
    active_j = CounterMetricFamily(
        "cinquefoil_segment_energy_joules",
        "Active energy attributed to a segment. MIG has no energy counter per slice: the whole "
        "GPU's energy less its idle energy is split by busy time x streaming multiprocessors "
        "(Kepler's rule); on simulated GPUs, by what the profile says.",
        labels=_SEGMENT,
    )
    idle_j = CounterMetricFamily(
        "cinquefoil_segment_idle_share_joules",
        "Idle energy shared to a segment as nodes.<n>.idle_share says; a part of the GPU's idle "
        "energy, never of the segment's active energy.",
        labels=_SEGMENT,
    )
    granted_j = CounterMetricFamily(
        "cinquefoil_segment_receipt_joules",
        "Energy that a segment's workers stated in receipts; it follows the active energy "
        "attributed to the segment, a window later.",
        labels=_SEGMENT,
    )
    for uuid, account in accounts.items():
        for name, entry in account.segments.items():
            labels = [uuid, entry.slice, name, entry.model, entry.variant]
            active_j.add_metric(labels, entry.active_j)
            idle_j.add_metric(labels, entry.idle_share_j)
            granted_j.add_metric(labels, entry.granted_j)
    yield from (active_j, idle_j, granted_j)


def _checks(accounts: Mapping[str, Account]) -> Iterator[Metric]:
    error = GaugeMetricFamily(
        "cinquefoil_energy_conservation_error_ratio",
        "Self-check: |idle + unattributed + segments' active energy - metered energy| / metered "
        "energy, over the last window and since the account began. Above 0.01, do not trust it.",
        labels=(*_GPU, "over"),
    )
    receipts = GaugeMetricFamily(
        "cinquefoil_receipt_energy_ratio",
        "Energy stated in receipts / active energy attributed, since the account began; 1: they "
        "add up.",
        labels=_GPU,
    )
    for uuid, account in accounts.items():
        error.add_metric([uuid, "window"], account.window_error_ratio)
        error.add_metric([uuid, "all"], account.error_ratio)
        receipts.add_metric([uuid], account.receipt_ratio)
    yield from (error, receipts)
