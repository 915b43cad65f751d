"""One setting, all policies: what the paper's Fig. 7, 8 and 14a are made of."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

from benchmarks.harness import Row
from benchmarks.muserve import arrivals, mix
from benchmarks.muserve.planning import groups
from benchmarks.muserve.planning.deployment import Deployment, deploy
from benchmarks.muserve.planning.model import Device, Served
from benchmarks.muserve.planning.pipelines import Job
from benchmarks.muserve.planning.tuning import tune
from benchmarks.muserve.replay import IDLE_W, POLICIES, Course, Policy, Replay, Span, figures

SAMPLE: Final = 2000
"""Requests before those that are measured, by which groups and clocks are chosen."""

TIME_LIMIT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Setting:
    """Load and devices of a case.

    Attributes:
        trace: Name of the trace of arrivals.
        slo_scale: Objective over the latency of one request alone.
        rate_rps: Of all models together.
        devices: V100s.
        insensitive: Share of every model's work that hardly follows the clock; None: Table 1's mix.
    """

    trace: arrivals.Name = "azure"
    slo_scale: float = 3.0
    rate_rps: float = 4.0
    devices: int = 8
    insensitive: float | None = None


class Study:
    """Models on devices, with their groups.

    Args:
        models: The models that are served.
        devices: The devices that serve them.
        sample: Requests before those that are measured; groups and clocks are chosen by them.
        span: Length of a replay.
    """

    def __init__(
        self,
        models: tuple[Served, ...],
        devices: tuple[Device, ...],
        sample: Sequence[Job],
        span: Span,
    ) -> None:
        self.models, self.span = models, span
        self._devices, self._sample = devices, sample
        self._grouping = groups.choose(models, devices, sample)

    def run(self, policy: Policy, jobs: Sequence[Job]) -> tuple[Course, Deployment]:
        """Serve requests under a policy."""
        if policy.planned:
            deployment = tune(self.models, self._devices, self._sample)
        else:
            deployment = deploy(
                self.models, self._grouping, policy.method, time_limit_s=TIME_LIMIT_S
            )
        return Replay(self.models, deployment, policy, self.span).run(jobs), deployment


def study_of(setting: Setting, span: Span) -> Study:
    """Return a setting of Table 1's models."""
    length_s = SAMPLE / setting.rate_rps
    sample = arrivals.jobs(setting.trace, setting.rate_rps, 0, length_s)
    rates_rps = arrivals.rates_rps(sample, length_s)
    models = mix.served(setting.slo_scale, rates_rps, arrivals.work(setting.trace))
    if setting.insensitive is not None:
        models = mix.insensitive(models, setting.insensitive)
    return Study(models, mix.devices(setting.devices), sample, span)


def jobs_of(setting: Setting, span: Span, policy: Policy) -> list[Job]:
    """Return the requests after the sample."""
    return arrivals.jobs(
        *(setting.trace, setting.rate_rps, SAMPLE, span.length_s),
        shortest_first=policy.shortest_first,
    )


def rows_of(setting: Setting, span: Span, policies: tuple[Policy, ...] = POLICIES) -> list[Row]:
    """Return one row per policy; ratios are over the first one's power."""
    jobs = partial(jobs_of, setting, span)
    return compared(study_of(setting, span), asdict(setting), policies, jobs)


def compared(
    study: Study,
    setting: Row,
    policies: Sequence[Policy],
    jobs: Callable[[Policy], Sequence[Job]],
) -> list[Row]:
    """Return one row per policy, after what all have in common; ratios are over the first one's."""
    rows: list[Row] = []
    for policy in policies:
        course, deployment = study.run(policy, jobs(policy))
        found = figures(course, study.models, study.span)
        base = rows[0] if rows else found
        ratios = {
            "saving": base["power_w"] / found["power_w"],
            "active_saving": (base["power_w"] - IDLE_W) / (found["power_w"] - IDLE_W),
            "serving_saving": base["serving_power_w"] / found["serving_power_w"],
            "fallbacks": deployment.fallbacks,
        }
        rows.append({**setting, "policy": policy.name, **found, **ratios})
    return rows
