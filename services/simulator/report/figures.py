"""Figures of a report on a policy. Field names are those of the JSON."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

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
from services.simulator.stats.sampled_intervals import WaitingCounts
from services.simulator.supported import generates_text


@dataclass(frozen=True, slots=True)
class TextFigures:
    """Texts of a language model; quantiles are of answered ones, None: there are none.

    Attributes:
        input_tokens, output_tokens: Tokens of all prompts and of all answers.
        output_tokens_per_s: Mean over all of the time.
        active_j_per_token: Active energy of the model's GPUs per token of an answer, those of
            requests that can wait included, J.
        ttft_p50_s, ttft_p99_s: Time to the first token, s.
        tpot_p50_s, tpot_p99_s: Mean time between the tokens of an answer, s.
        in_time: Share of answered texts that met every objective, 0..1.
    """

    input_tokens: int
    output_tokens: int
    output_tokens_per_s: float
    active_j_per_token: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    in_time: float | None


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """One model's requests: sent = answered + failed + open.

    Attributes:
        sent: Requests that arrived.
        simulated: Number of them simulated one by one.
        answered, failed, open: Their state at the end.
        failures: Failed requests by reason.
        late: Requests answered later than the objective.
        accuracy: Mean stated accuracy of the answers.
        p50_s, p95_s, p99_s: Latency of answered requests, s; None: there are none.
        latency_s: Latency at the objective's percentile, s.
        latency_range_s: Its 95 % range, s; None: too few intervals.
        slo_percentile, slo_latency_s: The objective.
        slo_ttft_s, slo_tpot_s: Objectives of a language model's tokens, s; None: none.
        texts: Figures of a language model's texts; None: not a language model.
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
    slo_ttft_s: float | None
    slo_tpot_s: float | None
    texts: TextFigures | None

    @property
    def met(self) -> bool:
        """The objective was met, over all of the time."""
        if self.texts is not None:
            in_time = self.texts.in_time
            return in_time is not None and 100 * in_time >= self.slo_percentile
        return self.latency_s is not None and self.latency_s <= self.slo_latency_s


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one policy.

    Attributes:
        policy, strategy: Names of the policy and its strategy.
        energy_j: Energy of all GPUs, J: idle_j + active_j.
        energy_error_j: Its 95 % error, J; None: too few intervals.
        carbon_gco2e: Carbon of that energy at the intensities in force, gCO2e, PUE included.
        models: Figures by model.
        decisions: Number of decisions by the strategy.
        plans: Number of plans.
        reconfigurations: Number of plans after the first that changed something on a GPU.
        slice_changes: Number of slices created or destroyed by them.
        waiting: Requests that can wait, by model: `models` has none of them.
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
    waiting: Mapping[str, WaitingCounts]

    @property
    def sent(self) -> int:
        """Number of requests of all models."""
        return sum(model.sent for model in self.models.values())

    @property
    def simulated(self) -> int:
        """Number of requests that were simulated one by one."""
        return sum(model.simulated for model in self.models.values())

    @property
    def still_open(self) -> int:
        """Number of requests that had not ended at the end."""
        return sum(model.open for model in self.models.values())

    @property
    def lost(self) -> int:
        """Number of requests that failed."""
        return sum(model.failed for model in self.models.values())


def spent(seen: RunRecord, weight: Mapping[str, Numbers]) -> Numbers:
    """Return the energy and carbon of each interval, shape (3, intervals).

    Idle energy, active energy, both in J, and carbon, gCO2e.

    Args:
        seen: Record of the policy.
        weight: Number of requests that each request of an interval represents, by model.
    """
    nodes, took = seen.deployment.nodes, []
    for index, interval in enumerate(seen.intervals):
        energy_j = dict(interval.spent.idle_j)
        active_j = 0.0
        for (node, model), used_j in interval.spent.active_j.items():
            energy_j[node] += used_j * float(weight[model][index])
            active_j += used_j * float(weight[model][index])
        intensity = interval.intensity_gco2e_per_kwh
        carbon = sum(
            carbon_gco2e(used_j * nodes[node].pue, intensity[nodes[node].zone])
            for node, used_j in energy_j.items()
        )
        took.append((sum(interval.spent.idle_j.values()), active_j, carbon))
    return np.array(took, dtype=np.float64).reshape(-1, 3).T


def figures(seen: RunRecord) -> Figures:
    """Return the figures of a policy."""
    names = seen.deployment.models
    weight = {name: weights(seen.intervals, name) for name in names}
    idle_j, active_j, carbon = map(float, spent(seen, weight).sum(axis=1))
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
        waiting=dict(seen.waiting),
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

    texts = _texts(seen, name, weight) if generates_text(settings) else None
    late_share = latencies.above(slo.latency_s)
    if texts is not None:
        late_share = 0.0 if texts.in_time is None else 1.0 - texts.in_time

    return ModelFigures(
        sent=sent,
        simulated=sum(interval.ended(name) for interval in intervals),
        answered=answered,
        failed=failed,
        open=still_open,
        failures=lost,
        late=round(late_share * answered),
        accuracy=right / total if total else None,
        p50_s=latencies.quantile_s(0.50),
        p95_s=latencies.quantile_s(0.95),
        p99_s=latencies.quantile_s(0.99),
        latency_s=latencies.quantile_s(slo.percentile / 100),
        latency_range_s=quantile_range_s(intervals, latencies, name, slo.percentile / 100),
        slo_percentile=slo.percentile,
        slo_latency_s=slo.latency_s,
        slo_ttft_s=slo.ttft_s,
        slo_tpot_s=slo.tpot_s,
        texts=texts,
    )


def _texts(seen: RunRecord, name: str, weight: Numbers) -> TextFigures:
    texts = [interval.texts[name] for interval in seen.intervals]
    first = Latencies.times([each.first_token_s for each in texts], weight)
    between = Latencies.times([each.token_s for each in texts], weight)
    answered = float(weight @ [len(each.first_token_s) for each in texts])
    output_tokens = float(weight @ [each.output_tokens for each in texts])
    active_j = [interval.active_j(name) for interval in seen.intervals]
    waiting = seen.waiting.get(name)
    all_tokens = output_tokens + (waiting.output_tokens if waiting else 0)
    return TextFigures(
        input_tokens=round(float(weight @ [each.input_tokens for each in texts])),
        output_tokens=round(output_tokens),
        output_tokens_per_s=output_tokens / seen.intervals[-1].end_s,
        active_j_per_token=float(weight @ active_j) / all_tokens if all_tokens else None,
        ttft_p50_s=first.quantile_s(0.5),
        ttft_p99_s=first.quantile_s(0.99),
        tpot_p50_s=between.quantile_s(0.5),
        tpot_p99_s=between.quantile_s(0.99),
        in_time=1.0 - float(weight @ [each.late for each in texts]) / answered
        if answered
        else None,
    )
