"""What a policy did over time, in bins of equal length: what plots show."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from services.simulator.report.figures import spent
from services.simulator.stats.estimate import Latencies, Numbers, weights
from services.simulator.stats.run_record import RunRecord

_BINS = 288
_LEAST_S = 1.0


@dataclass(frozen=True, slots=True)
class Series:
    """Means over bins; a list has one entry per bin, None where nothing was answered.

    Attributes:
        bin_s: Length of a bin, s; the first begins at 0.
        intensity_gco2e_per_kwh: By zone.
        load_rps: By model.
        power_w: Of all GPUs.
        carbon_gco2e_per_h: Of all GPUs.
        accuracy: Of the answers, by model.
        latency_s: At the objective's percentile, by model.
        shares: Of the answers, by model and variant.
    """

    bin_s: float
    intensity_gco2e_per_kwh: Mapping[str, list[float]]
    load_rps: Mapping[str, list[float]]
    power_w: list[float]
    carbon_gco2e_per_h: list[float]
    accuracy: Mapping[str, list[float | None]]
    latency_s: Mapping[str, list[float | None]]
    shares: Mapping[str, Mapping[str, list[float]]]


@dataclass(frozen=True, slots=True)
class _Bins:
    """Which part of each interval lies in which bin. Attributes: bin_s, parts (by bin)."""

    bin_s: float
    parts: tuple[tuple[tuple[int, float], ...], ...]

    @classmethod
    def of(cls, seen: RunRecord) -> _Bins:
        """Cut the time into bins."""
        end_s = seen.intervals[-1].end_s
        count = max(1, min(_BINS, int(end_s / _LEAST_S)))
        bin_s = end_s / count
        parts: list[list[tuple[int, float]]] = [[] for _ in range(count)]
        for index, interval in enumerate(seen.intervals):
            length_s = interval.end_s - interval.begin_s
            first = min(int(interval.begin_s / bin_s), count - 1)
            last = min(int(np.ceil(interval.end_s / bin_s)), count)
            for number in range(first, max(last, first + 1)):
                inside_s = min(interval.end_s, (number + 1) * bin_s) - max(
                    interval.begin_s, number * bin_s
                )
                if inside_s > 0:
                    parts[number].append((index, inside_s / length_s))
        return cls(bin_s, tuple(map(tuple, parts)))

    def sums(self, values: Sequence[float] | Numbers) -> Numbers:
        """Return what falls into each bin of quantities that intervals have."""
        return np.array([sum(values[i] * part for i, part in each) for each in self.parts])


def series(seen: RunRecord) -> Series:
    """Return a policy's series."""
    names = list(seen.deployment.models)
    bins = _Bins.of(seen)
    weight = {name: weights(seen.intervals, name) for name in names}
    took = [
        spent(interval, {name: float(weight[name][i]) for name in names}, seen.deployment)
        for i, interval in enumerate(seen.intervals)
    ]
    energy_j = bins.sums([idle_j + active_j for idle_j, active_j, _ in took])
    carbon = bins.sums([carbon for _, _, carbon in took])
    load = {
        name: bins.sums([interval.arrived[name] for interval in seen.intervals]) for name in names
    }
    return Series(
        bin_s=bins.bin_s,
        intensity_gco2e_per_kwh=_intensities(seen, bins),
        load_rps={name: (count / bins.bin_s).tolist() for name, count in load.items()},
        power_w=(energy_j / bins.bin_s).tolist(),
        carbon_gco2e_per_h=(carbon / bins.bin_s * 3600).tolist(),
        accuracy={name: _accuracy(seen, bins, name, weight[name]) for name in names},
        latency_s={name: _latency_s(seen, bins, name, weight[name]) for name in names},
        shares={name: _shares(seen, bins, name, weight[name]) for name in names},
    )


def _intensities(seen: RunRecord, bins: _Bins) -> dict[str, list[float]]:
    zones = sorted({node.zone for node in seen.deployment.nodes.values()})
    return {
        zone: (
            bins.sums(
                [
                    interval.intensity_gco2e_per_kwh[zone] * (interval.end_s - interval.begin_s)
                    for interval in seen.intervals
                ]
            )
            / bins.bin_s
        ).tolist()
        for zone in zones
    }


def _answers(seen: RunRecord, bins: _Bins, model: str, weight: Numbers) -> dict[str, Numbers]:
    """Return answered requests by variant and bin."""
    by_variant: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(seen.intervals))
    for index, interval in enumerate(seen.intervals):
        for (name, variant), count in interval.answers.items():
            if name == model:
                by_variant[variant][index] = count * float(weight[index])
    order = [name for name in seen.deployment.models[model].variants if name in by_variant]
    return {variant: bins.sums(by_variant[variant]) for variant in order}


def _shares(seen: RunRecord, bins: _Bins, model: str, weight: Numbers) -> dict[str, list[float]]:
    answers = _answers(seen, bins, model, weight)
    total = np.maximum(sum(answers.values(), start=np.zeros(len(bins.parts))), 1e-12)
    return {variant: (count / total).tolist() for variant, count in answers.items()}


def _accuracy(seen: RunRecord, bins: _Bins, model: str, weight: Numbers) -> list[float | None]:
    variants = seen.deployment.models[model].variants
    answers = _answers(seen, bins, model, weight)
    nothing = np.zeros(len(bins.parts))
    total = sum(answers.values(), start=nothing)
    right = sum((variants[name].accuracy * n for name, n in answers.items()), start=nothing)
    return [float(r / n) if n > 0 else None for r, n in zip(right, total, strict=True)]


def _latency_s(seen: RunRecord, bins: _Bins, model: str, weight: Numbers) -> list[float | None]:
    share = seen.deployment.models[model].slo.percentile / 100
    found: list[float | None] = []
    for parts in bins.parts:
        intervals = [seen.intervals[index] for index, _ in parts]
        factors = np.array([weight[index] * part for index, part in parts])
        latencies = Latencies.of(intervals, factors, model)
        found.append(latencies.quantile_s(share) if len(latencies.rank) else None)
    return found
