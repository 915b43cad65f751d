"""Composition root of the simulator: wires the services' cores together in virtual time."""

import math
from collections.abc import Callable, Iterator

import numpy as np
from simpy import Environment, Event

from services.kit.config import Deployment, OnnxRuntime
from services.kit.errors import FailedPrecondition
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.cycle.cycle import DecisionCycle
from services.planner.core.cycle.waiting_work import WaitingWork
from services.planner.core.forecast.text_lengths import stated
from services.planner.core.load_report import LoadReport
from services.planner.core.waiting.grid_outlook import OUTLOOK_S
from services.router.core.model_registry import ModelRegistry
from services.simulator.environment import Grid, send
from services.simulator.load import arrivals, rate, text_lengths
from services.simulator.loader import Setting
from services.simulator.nodes import Nodes
from services.simulator.planner import (
    PlannerClock,
    VirtualChangeEvent,
    VirtualEnvironment,
    process_of,
)
from services.simulator.router import Lengths, Router
from services.simulator.scenario import ConstantLoad, Policy, RecordedLoad, Texts
from services.simulator.stats.run_record import RunRecord
from services.simulator.stats.sampled_intervals import Arrivals, Lately, Recorder
from services.simulator.stats.sampling import Sampler
from services.simulator.timeline import Timeline, Waiting
from services.simulator.waiting import WaitingDemand, WaitingModelDemand

_ROUTER = "router"
_LOOKBACK_S = 10.0
_TURN_S = 60.0
_STEPS = 200

Progress = Callable[[float], None]
"""Called with the progress, 0..1."""


def draw_arrivals(setting: Setting) -> Arrivals:
    """Return arrivals by model, s; every policy gets the same."""
    scenario, start = setting.scenario, setting.start
    hour = start.hour + start.minute / 60 + start.second / 3600
    found = {}
    for number, model in enumerate(setting.models):
        load = scenario.load.get(model.name) or ConstantLoad(
            kind="constant", rate_rps=model.demand_rps
        )
        column = setting.columns.get(model.name)
        if isinstance(load, RecordedLoad) and column is not None:
            found[model.name] = column[column < scenario.duration_s]
        else:
            rng = np.random.default_rng((scenario.seed, number))
            steps = rate(load, column, scenario.duration_s, hour)
            found[model.name] = arrivals(steps, scenario.arrivals, rng)
    return found


def draw_lengths(setting: Setting, requests: Arrivals) -> Lengths:
    """Return the lengths of all texts, by language model; every policy gets the same.

    Args:
        setting: The scenario.
        requests: Arrivals from `draw_arrivals`.
    """
    found = {}
    for number, model in enumerate(setting.models):
        runtimes = (
            each.runtime for each in setting.deployment.models[model.name].variants.values()
        )
        usual = stated(model)
        if usual is None or all(isinstance(each, OnnxRuntime) for each in runtimes):
            continue
        if model.name in setting.lengths:
            found[model.name] = setting.lengths[model.name]
            continue
        texts = setting.scenario.texts.get(model.name) or Texts()
        rng = np.random.default_rng((setting.scenario.seed, number, 1))
        means = (usual.prompt_tokens, usual.answer_tokens)
        found[model.name] = text_lengths(texts, means, len(requests[model.name]), rng)
    return found


def draw_waiting(setting: Setting) -> Iterator[WaitingModelDemand]:
    """Yield the requests that can wait, by model."""
    scenario, start = setting.scenario, setting.start
    hour = start.hour + start.minute / 60 + start.second / 3600
    for number, model in enumerate(setting.models):
        wanted = scenario.waiting.get(model.name)
        if wanted is None:
            continue
        rng = np.random.default_rng((scenario.seed, number, 2))
        steps = rate(wanted.load, None, scenario.duration_s, hour)
        at_s = arrivals(steps, scenario.arrivals, rng)
        lengths = draw_lengths(setting, {each.name: at_s for each in setting.models})
        speedup = setting.deployment.carbon.replay.speedup
        window_s = 3600.0 * wanted.window_h
        yield WaitingModelDemand(model.name, at_s, lengths.get(model.name), window_s, speedup)


def simulate(
    setting: Setting,
    policy: Policy,
    requests: Arrivals,
    progress: Progress = lambda _: None,
) -> RunRecord:
    """Simulate one policy.

    Args:
        setting: The scenario.
        policy: The policy.
        requests: Arrivals from `draw_arrivals`.
        progress: Called with the progress, 0..1.
    """
    suite = _Suite(setting, policy, requests)
    env = suite.timeline.env
    env.process(_report_progress(suite.timeline, setting.scenario.duration_s, progress))
    env.run(until=setting.scenario.duration_s)
    if not suite.planner.records and suite.planner.problem:
        raise FailedPrecondition(f"no plan was made: {suite.planner.problem}")
    suite.recorder.turn(env.now)
    progress(1.0)
    return RunRecord(
        policy=policy,
        deployment=suite.deployment,
        intervals=tuple(suite.recorder.intervals),
        plans=tuple(suite.planner.records),
        decisions=suite.planner.decisions,
        open=suite.router.open,
        waiting=suite.recorder.waiting,
    )


class _Suite:
    """All objects of one simulation."""

    def __init__(self, setting: Setting, policy: Policy, requests: Arrivals) -> None:
        scenario = setting.scenario
        deployment = _seeded(policy.applied(setting.deployment), scenario.seed)
        timing, planner = scenario.timing, deployment.planner
        self.deployment = deployment
        self.timeline = timeline = Timeline(Environment())
        env = timeline.env
        self._grid = Grid(deployment.carbon, setting.sources, setting.start, planner.horizon)
        self.recorder = Recorder(requests, self._grid.at(0.0), timing.client_s)
        self.router = Router(
            deployment,
            ModelRegistry.at_start(deployment, self._grid),
            timeline,
            self.recorder,
            timing.link_s,
            int(scenario.request_kib * 1024),
            draw_lengths(setting, requests),
        )
        self._report_due: Event | None = None
        self.router.report_soon = self._report_soon
        self._nodes = nodes = Nodes(deployment, setting.models, timeline, self.router, scenario)
        self.recorder.measure(nodes.meters)
        clock = PlannerClock(env, setting.start)
        self._state = state = ClusterState.of(
            deployment, setting.models, clock, VirtualChangeEvent(env)
        )
        for name in deployment.nodes:
            nodes.report(name, state.fleet)
        self._sampler = Sampler(
            scenario.sampling,
            timeline,
            self.recorder,
            backlog=lambda: self.router.backlog,
            busy=lambda: self.planner.busy,
        )
        self.planner = VirtualEnvironment(
            deployment, env, state, nodes, self.router, timing, self._sampler.disturb
        )
        self._cycle = DecisionCycle(state, self.planner)
        self.waiting = self._waiting(setting, policy)
        self._start(requests, sampled=scenario.detail == "sampled")

    def _waiting(self, setting: Setting, policy: Policy) -> WaitingDemand:
        """Return the requests that can wait; every policy gets the same."""
        work = None
        if setting.scenario.waiting and policy.waiting == "planned":
            self._state.grid.length_s = OUTLOOK_S
            work = WaitingWork(self._state, lambda: self.planner.shares)
        return WaitingDemand(
            list(draw_waiting(setting)),
            self.timeline,
            self._state.clock,
            self.router,
            self.recorder,
            work,
        )

    def _start(self, requests: Arrivals, *, sampled: bool) -> None:
        """Begin every process; the planner first, so that requests find its plan."""
        env = self.timeline.env
        self._update_grid(0.0)
        processes = [
            process_of(self._cycle.run()),
            self._grid.follow(self.timeline, self._change_grid),
            self._report(),
            self._sampler.run() if sampled else self._turn(),
            *(send(name, at_s, self.timeline, self.router) for name, at_s in requests.items()),
            *self.waiting.processes(),
        ]
        for process in processes:
            env.process(process)

    def _change_grid(self, at_s: float) -> None:
        """Put a new intensity in force, if it has changed."""
        intensity = self._grid.at(at_s)
        if intensity != self.recorder.intensity_gco2e_per_kwh:
            self._sampler.disturb(0.0)
            self.recorder.intensity_gco2e_per_kwh = intensity
            self.recorder.turn(self.timeline.env.now)
        self._update_grid(at_s)

    def _update_grid(self, at_s: float) -> None:
        outlook = self._state.grid
        if outlook.length_s:
            outlook.hear(self._grid.grid_s(at_s), at_s)
            outlook.steps.update(self._grid.outlook(at_s, outlook.length_s))
        self._state.update_forecast(self._grid.forecast(at_s))
        self._state.update_intensity(self._grid.at(at_s))

    def _report(self) -> Waiting:
        """Report all arrivals to the planner, simulated or not, with their cost."""
        env, interval_s = self.timeline.env, self.deployment.router.report_interval_s
        start_s = self._state.clock.now().timestamp()
        seconds = range(math.ceil(start_s), math.ceil(start_s))
        begin_s, elapsed = env.now, env.timeout(interval_s)
        while True:
            due = self._report_due = env.event()
            yield env.any_of([elapsed, due])
            if elapsed.processed:
                elapsed = env.timeout(interval_s)
            # A request that makes it report at once is of this window.
            end_s = float(np.nextafter(env.now, np.inf)) if due.triggered else env.now
            window_s, arrived = end_s - begin_s, self.recorder.arrived(begin_s, end_s)
            begin_s = end_s
            seconds = range(seconds.stop, math.floor(start_s + env.now))
            lately = self.recorder.lately()
            refused = {name: each.refused for name, each in self.router.overload().items()}
            for name, counters in self._nodes.counters().items():
                self._state.readings.metered(name, counters)
            self._state.update_load(
                LoadReport(
                    router_id=_ROUTER,
                    revision=self.recorder.table,
                    window_s=window_s,
                    arrivals=arrived,
                    answered=sum(each.total() for each in lately.by_variant.values()),
                    latency_s=self._latency_s(lately),
                    late=lately.late,
                    by_variant=lately.by_variant,
                    refused=refused,
                    tokens=dict(self.recorder.tokens),
                    first_second=seconds.start,
                    arrivals_per_s=self.recorder.per_second(seconds, start_s),
                )
            )
            seen = self.recorder.arrived(env.now - _LOOKBACK_S, env.now)
            self._sampler.watch(seen, _LOOKBACK_S)

    def _report_soon(self) -> None:
        """Report at once: a request waits for a model without any instance."""
        if self._report_due is not None and not self._report_due.triggered:
            self._report_due.succeed()

    def _latency_s(self, lately: Lately) -> dict[str, float]:
        """Return the latency of recent answers at each objective's percentile, s."""
        models = self.deployment.models
        return {
            name: float(np.percentile(latency_s, models[name].slo.percentile))
            for name, latency_s in lately.latency_s.items()
        }

    def _turn(self) -> Waiting:
        """Divide the time into intervals although all of it is simulated."""
        while True:
            yield self.timeline.env.timeout(_TURN_S)
            self.recorder.turn(self.timeline.env.now)


def _seeded(deployment: Deployment, seed: int) -> Deployment:
    planner = deployment.planner.model_copy(update={"seed": seed})
    return deployment.model_copy(update={"planner": planner})


def _report_progress(timeline: Timeline, duration_s: float, progress: Progress) -> Waiting:
    while True:
        progress(timeline.env.now / duration_s)
        yield timeline.env.timeout(duration_s / _STEPS)
