"""Course of a policy over time, in bins of equal length, for plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from services.kit.config import Variant
from services.simulator.report.figures import spent
from services.simulator.stats.estimate import Latencies, Numbers, weights
from services.simulator.stats.run_record import RunRecord

_BINS = 288
_LEAST_S = 1.0


@dataclass(frozen=True, slots=True)
class Series:
    """Means over bins; a list has one entry per bin, None if nothing was answered.

    Attributes:
        bin_s: Length of a bin, s; the first begins at 0.
        intensity_gco2e_per_kwh: Intensity by zone.
        load_rps: Load by model, req/s.
        power_w: Power of all GPUs, W.
        carbon_gco2e_per_h: Carbon of all GPUs, gCO2e/h.
        accuracy: Accuracy of the answers, by model.
        latency_s: Latency at the objective's percentile, by model, s.
        shares: Share of the answers, by model and variant.
    """

    bin_s: float
    intensity_gco2e_per_kwh: Mapping[str, list[float]]
    load_rps: Mapping[str, list[float]]
    power_w: list[float]
    carbon_gco2e_per_h: list[float]
    accuracy: Mapping[str, list[float | None]]
    latency_s: Mapping[str, list[float | None]]
    shares: Mapping[str, Mapping[str, list[float]]]


@dataclass(frozen=True, slots=True, eq=False)
class _Bins:
    """Overlap of intervals and bins. Attributes: bin_s, parts (bins, intervals)."""

    bin_s: float
    parts: Numbers

    @classmethod
    def of(cls, seen: RunRecord) -> _Bins:
        """Divide the time into bins."""
        begin_s = np.array([interval.begin_s for interval in seen.intervals])
        end_s = np.array([interval.end_s for interval in seen.intervals])
        count = max(1, min(_BINS, int(end_s[-1] / _LEAST_S)))
        edges_s = np.linspace(0.0, end_s[-1], count + 1)[:, None]
        inside_s = np.minimum(end_s, edges_s[1:]) - np.maximum(begin_s, edges_s[:-1])
        return cls(float(edges_s[1, 0]), np.maximum(inside_s, 0.0) / (end_s - begin_s))

    def sums(self, values: Sequence[float] | Numbers) -> Numbers:
        """Return the sums per bin of quantities per interval."""
        return np.asarray(self.parts @ np.asarray(values, dtype=np.float64))


def series(seen: RunRecord) -> Series:
    """Return a policy's series."""
    names = list(seen.deployment.models)
    bins = _Bins.of(seen)
    weight = {name: weights(seen.intervals, name) for name in names}
    idle_j, active_j, carbon_g = spent(seen, weight)
    energy_j, carbon = bins.sums(idle_j + active_j), bins.sums(carbon_g)
    load = {
        name: bins.sums([interval.arrived[name] for interval in seen.intervals]) for name in names
    }
    answers = {name: _answers(seen, bins, name, weight[name]) for name in names}
    return Series(
        bin_s=bins.bin_s,
        intensity_gco2e_per_kwh=_intensities(seen, bins),
        load_rps={name: (count / bins.bin_s).tolist() for name, count in load.items()},
        power_w=(energy_j / bins.bin_s).tolist(),
        carbon_gco2e_per_h=(carbon / bins.bin_s * 3600).tolist(),
        accuracy={
            name: _accuracy(answers[name], model.variants, bins)
            for name, model in seen.deployment.models.items()
        },
        latency_s={name: _latency_s(seen, bins, name, weight[name]) for name in names},
        shares={name: _shares(answers[name]) for name in names},
    )


def _intensities(seen: RunRecord, bins: _Bins) -> dict[str, list[float]]:
    zones = sorted({node.zone for node in seen.deployment.nodes.values()})
    lengths_s = np.array([interval.end_s - interval.begin_s for interval in seen.intervals])
    found = {}
    for zone in zones:
        values = [interval.intensity_gco2e_per_kwh[zone] for interval in seen.intervals]
        found[zone] = (bins.sums(values * lengths_s) / bins.bin_s).tolist()
    return found


def _answers(seen: RunRecord, bins: _Bins, model: str, weight: Numbers) -> dict[str, Numbers]:
    """Return answered requests by variant and bin; variants in the deployment's order."""
    counts = {
        variant: np.array([interval.answers[model, variant] for interval in seen.intervals])
        for variant in seen.deployment.models[model].variants
    }
    return {variant: bins.sums(n * weight) for variant, n in counts.items() if n.any()}


def _shares(answers: Mapping[str, Numbers]) -> dict[str, list[float]]:
    total = np.maximum(sum(answers.values(), start=np.zeros(1)), 1e-12)
    return {variant: (count / total).tolist() for variant, count in answers.items()}


def _accuracy(
    answers: Mapping[str, Numbers], variants: Mapping[str, Variant], bins: _Bins
) -> list[float | None]:
    nothing = np.zeros(len(bins.parts))
    total = sum(answers.values(), start=nothing)
    right = sum((variants[name].accuracy * n for name, n in answers.items()), start=nothing)
    return [float(r / n) if n > 0 else None for r, n in zip(right, total, strict=True)]


def _latency_s(seen: RunRecord, bins: _Bins, model: str, weight: Numbers) -> list[float | None]:
    share = seen.deployment.models[model].slo.percentile / 100
    found: list[float | None] = []
    for parts in bins.parts:
        inside = np.flatnonzero(parts)
        intervals = [seen.intervals[index] for index in inside]
        latencies = Latencies.of(intervals, (weight * parts)[inside], model)
        found.append(latencies.quantile_s(share))
    return found
