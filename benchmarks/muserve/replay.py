"""One policy on one stream of requests: pipelines in virtual time, clocks by the agent's loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from benchmarks.miad.setting import FLOOR, PERCENTILE, TABLE
from benchmarks.muserve.planning.clocking import V100
from benchmarks.muserve.planning.deployment import Deployment, Method
from benchmarks.muserve.planning.model import Served
from benchmarks.muserve.planning.pipelines import Answer, Job, Simulation
from services.gpuagent.clock_loop.core.decide import GovernedSegment
from services.gpuagent.clock_loop.core.governor import SAMPLE_S, Governor
from services.gpuagent.shared_memory.latency_counters import SIZES, Counts, size_of

IDLE_W: Final = TABLE.idle_power_w
_SEEN_W, _SEEN_MHZ = 214.0, 1300.0
ACTIVE_W: Final = (_SEEN_W - IDLE_W) / V100.power_ratio(_SEEN_MHZ / TABLE.max_clock_mhz)
"""Beyond idle, at the highest clock: a V100 that serves draws 214 W at 1300 MHz (section 2.2)."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy of the comparison.

    Attributes:
        name: As in the paper's Fig. 7, mostly.
        method: Method that places partitions.
        shortest_first: Generating models serve short answers first.
        scaled: The clock loop runs.
        planned: Groups and least clocks are those that a simulation of earlier requests bore out
            (`benchmarks.muserve.planning.tuning`); else groups are AlpaServe's, and the loop goes
            down to its own floor.
    """

    name: str
    method: Method
    shortest_first: bool = True
    scaled: bool = True
    planned: bool = False


POLICIES: Final = (
    Policy("alpaserve", "alpaserve", shortest_first=False, scaled=False),
    Policy("alpaserve_sched", "alpaserve", scaled=False),
    Policy("alpaserve_scaling", "alpaserve"),
    Policy("muserve", "muserve"),
    Policy("exact", "exact"),
    Policy("exact_planned", "exact", planned=True),
)


@dataclass(slots=True)
class Course:
    """Record of a replay.

    Attributes:
        answers: All answers.
        clocks: Of each device: when it changed, s, and to what, MHz.
        energy_s: Active energy at the end of settling and at the end, in s of full power, summed.
        busy_s: The same for time with something to do.
        span_s: Between the two.
    """

    answers: list[Answer] = field(default_factory=list)
    clocks: dict[str, list[tuple[float, int]]] = field(default_factory=dict)
    energy_s: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    span_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Span:
    """When to measure. Attributes: settle_s, until the loop has found its way; length_s, in all."""

    settle_s: float = 120.0
    length_s: float = 600.0


class Replay:
    """Serves a stream under a policy.

    Args:
        models: The models that are served.
        deployment: Placement of their partitions.
        policy: Policy of the clocks.
        span: Length of the replay.
    """

    def __init__(
        self, models: Sequence[Served], deployment: Deployment, policy: Policy, span: Span
    ) -> None:
        self._span = span
        self._simulation = Simulation(deployment.pipelines, deployment.clock_ratios)
        self._counts: dict[str, Counts] = {m.name: np.zeros(SIZES, np.uint64) for m in models}
        self._read = 0
        self.course = Course(clocks={name: [] for name in deployment.clock_ratios})
        self._tenants = _tenants({model.name: model for model in models}, deployment)
        self._governors = {
            name: Governor(name, TABLE.clocks_mhz, ratio if policy.planned else FLOOR)
            for name, ratio in deployment.clock_ratios.items()
            if policy.scaled and self._tenants[name]
        }

    def run(self, jobs: Sequence[Job]) -> Course:
        """Serve them all."""
        length_s = self._span.length_s
        self._simulation.run(jobs, every_s=SAMPLE_S, until_s=length_s, look=self._look)
        self.course.answers = self._simulation.answers
        return self.course

    def _look(self, simulation: Simulation) -> None:
        now_s, course = simulation.now_s, self.course
        if now_s in (self._span.settle_s, self._span.length_s):
            self._note(simulation)
        for answer in simulation.answers[self._read :]:
            counts = self._counts[answer.model].copy()  # the loop keeps what it was given
            counts[size_of(answer.latency_s)] += 1
            self._counts[answer.model] = counts
        self._read = len(simulation.answers)
        for name, governor in self._governors.items():
            seen = {segment: self._counts[segment.model] for segment in self._tenants[name]}
            governor.look(now_s, 0, seen)
            if not course.clocks[name] or course.clocks[name][-1][1] != governor.clock_mhz:
                course.clocks[name].append((now_s, governor.clock_mhz))
                simulation.set_clock(name, governor.clock_mhz / TABLE.max_clock_mhz)

    def _note(self, simulation: Simulation) -> None:
        devices = simulation.devices.values()
        for device in devices:
            device.catch_up(simulation.now_s)
        self.course.energy_s.append(sum(device.power_s for device in devices))
        self.course.busy_s.append(sum(device.busy_s for device in devices))
        self.course.span_s = self._span.length_s - self._span.settle_s


def _tenants(
    models: Mapping[str, Served], deployment: Deployment
) -> dict[str, list[GovernedSegment]]:
    """Return whose latencies each device's loop minds: a model's, end to end, once per device."""
    found: dict[str, dict[str, GovernedSegment]] = {name: {} for name in deployment.clock_ratios}
    for pipeline in deployment.pipelines:
        for stage in pipeline.stages:
            segment = GovernedSegment(
                pipeline.model,
                pipeline.model,
                PERCENTILE,
                models[pipeline.model].slo_s,
                stage.sensitivity,
            )
            known = found[stage.device].setdefault(pipeline.model, segment)
            worst = max(known.sensitivity, stage.sensitivity)
            found[stage.device][pipeline.model] = replace(known, sensitivity=worst)
    return {name: list(each.values()) for name, each in found.items()}


def figures(course: Course, models: Sequence[Served], span: Span) -> dict[str, float]:
    """Return what a run comes to, settling apart.

    Returns:
        Means per device of power over time (`power_w`) and of power while it serves
        (`serving_power_w`), both with idle power; the 99th percentile of latency over objective, of
        all requests and of the worst model; the number of models whose own is above 1; the share of
        time that a device is busy.
    """
    slos_s = {model.name: model.slo_s for model in models}
    ratios: dict[str, list[float]] = {}
    for answer in course.answers:
        if span.settle_s <= answer.at_s - answer.latency_s < span.length_s:
            late = answer.latency_s / slos_s[answer.model]
            ratios.setdefault(answer.model, []).append(late)
    worst = [float(np.percentile(each, PERCENTILE)) for each in ratios.values()]
    everyone = np.concatenate([np.array(each) for each in ratios.values()])
    energy_s, busy_s = course.energy_s[1] - course.energy_s[0], course.busy_s[1] - course.busy_s[0]
    devices = len(course.clocks)
    return {
        "power_w": IDLE_W + ACTIVE_W * energy_s / course.span_s / devices,
        "serving_power_w": IDLE_W + ACTIVE_W * energy_s / busy_s,
        "p99_over_slo": float(np.percentile(everyone, PERCENTILE)),
        "worst_p99_over_slo": max(worst),
        "models_over_slo": sum(each > 1 for each in worst),
        "busy": busy_s / course.span_s / devices,
    }
