"""What a policy came to: the figures of a report. Field names are those of the JSON."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from services.kit.config import Deployment
from services.kit.units import carbon_gco2e
from services.simulator.stats.estimate import (
    Latencies,
    Numbers,
    Range,
    active_error_j,
    quantile_range_s,
    weights,
)
from services.simulator.stats.run_record import RunRecord
from services.simulator.stats.sampled_intervals import SampledInterval


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """One model's requests: sent = answered + failed + open.

    Attributes:
        sent: Requests that arrived.
        simulated: Of them, those that were simulated one by one.
        answered, failed, open: What became of them at the end.
        failures: The failed by reason.
        late: Answered, but later than the objective.
        accuracy: Mean stated accuracy of the answers.
        p50_s, p95_s, p99_s: Latency of the answered, s; None: none was.
        latency_s: The same at the objective's percentile.
        latency_range_s: Its 95 % range; None where too few intervals show it.
        slo_percentile, slo_latency_s: The objective.
    """

    sent: int
    simulated: int
    answered: int
    failed: int
    open: int
    failures: Mapping[str, int]
    late: int
    accuracy: float | None
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    latency_s: float | None
    latency_range_s: Range | None
    slo_percentile: float
    slo_latency_s: float

    @property
    def met(self) -> bool:
        """The objective was met, over all of the time."""
        return self.latency_s is not None and self.latency_s <= self.slo_latency_s


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy.

    Attributes:
        policy, strategy: Its name, and who decides.
        energy_j: Of all GPUs: idle_j + active_j.
        energy_error_j: How far it may be off, 95 %; None where too few intervals show it.
        carbon_gco2e: Each joule at the intensity in force, PUE included.
        models: By model.
        decisions: Number of decisions by the strategy.
        plans: Plans that came of it.
        reconfigurations: Plans after the first that changed something on a GPU.
        slice_changes: Slices created or destroyed by them.
    """

    policy: str
    strategy: str
    energy_j: float
    idle_j: float
    active_j: float
    energy_error_j: float | None
    carbon_gco2e: float
    models: Mapping[str, ModelFigures]
    decisions: int
    plans: int
    reconfigurations: int
    slice_changes: int

    @property
    def sent(self) -> int:
        """Requests of all models."""
        return sum(model.sent for model in self.models.values())

    @property
    def simulated(self) -> int:
        """Requests that were simulated one by one."""
        return sum(model.simulated for model in self.models.values())

    @property
    def still_open(self) -> int:
        """Requests that had not ended at the end."""
        return sum(model.open for model in self.models.values())

    @property
    def lost(self) -> int:
        """Requests that failed."""
        return sum(model.failed for model in self.models.values())


def spent(
    interval: SampledInterval, weight: Mapping[str, float], deployment: Deployment
) -> tuple[float, float, float]:
    """Return what an interval took: idle energy, active energy, both in J, and carbon, gCO2e.

    Args:
        interval: The interval.
        weight: Requests that each of its requests stands for, by model.
        deployment: For zones and PUE.
    """
    energy_j = dict(interval.spent.idle_j)
    active_j = 0.0
    for (node, model), used_j in interval.spent.active_j.items():
        energy_j[node] += used_j * weight[model]
        active_j += used_j * weight[model]
    carbon = sum(
        carbon_gco2e(
            used_j * deployment.nodes[node].pue,
            interval.intensity_gco2e_per_kwh[deployment.nodes[node].zone],
        )
        for node, used_j in energy_j.items()
    )
    return sum(interval.spent.idle_j.values()), active_j, carbon


def figures(seen: RunRecord) -> Figures:
    """Return the figures of a policy."""
    names = seen.deployment.models
    weight = {name: weights(seen.intervals, name) for name in names}
    idle_j = active_j = carbon = 0.0
    for index, interval in enumerate(seen.intervals):
        each = {name: float(weight[name][index]) for name in names}
        one, two, three = spent(interval, each, seen.deployment)
        idle_j, active_j, carbon = idle_j + one, active_j + two, carbon + three
    errors = [active_error_j(seen.intervals, name) for name in names]
    known = [error for error in errors if error is not None]
    changed = [plan for plan in seen.plans[1:] if plan.steps]
    return Figures(
        policy=seen.policy.label,
        strategy=seen.policy.strategy,
        energy_j=idle_j + active_j,
        idle_j=idle_j,
        active_j=active_j,
        energy_error_j=float(np.linalg.norm(known)) if len(known) == len(errors) else None,
        carbon_gco2e=carbon,
        models={name: _model(seen, name, weight[name]) for name in names},
        decisions=seen.decisions,
        plans=len(seen.plans),
        reconfigurations=len(changed),
        slice_changes=sum(plan.slice_changes for plan in changed),
    )


def _model(seen: RunRecord, name: str, weight: Numbers) -> ModelFigures:
    settings, intervals = seen.deployment.models[name], seen.intervals
    slo = settings.slo
    failures: defaultdict[str, float] = defaultdict(float)
    right = total = 0.0
    for interval, factor in zip(intervals, weight, strict=True):
        for (model, reason), count in interval.failures.items():
            if model == name:
                failures[reason] += count * float(factor)
        for (model, variant), count in interval.answers.items():
            if model == name:
                total += count * float(factor)
                right += count * float(factor) * settings.variants[variant].accuracy
    lost = {reason: round(count) for reason, count in sorted(failures.items())}
    latencies = Latencies.of(intervals, weight, name)
    sent = sum(interval.arrived[name] for interval in intervals)
    failed, still_open = sum(lost.values()), seen.open[name]
    answered = sent - failed - still_open

    def quantile_s(percentile: float) -> float | None:
        return latencies.quantile_s(percentile / 100) if total else None

    return ModelFigures(
        sent=sent,
        simulated=sum(interval.ended(name) for interval in intervals),
        answered=answered,
        failed=failed,
        open=still_open,
        failures=lost,
        late=round(latencies.above(slo.latency_s) * answered),
        accuracy=right / total if total else None,
        p50_s=quantile_s(50),
        p95_s=quantile_s(95),
        p99_s=quantile_s(99),
        latency_s=quantile_s(slo.percentile),
        latency_range_s=quantile_range_s(intervals, latencies, name, slo.percentile / 100),
        slo_percentile=slo.percentile,
        slo_latency_s=slo.latency_s,
    )
