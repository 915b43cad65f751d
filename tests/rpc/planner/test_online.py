"""Online mode: a planner whose profiles are wrong corrects them by search on a fleet that serves.

The fleet's agent and router report what a world with slower slices would show. In it a second
stands for a minute: counters grow as fast.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.clover.live import SPAN_S, World
from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.planner.v1.records import Plan
from services.kit import config
from services.kit.rpc.record_mapping import from_message
from services.planner.adapters.model_loader import load_models
from services.planner.adapters.store import open_store
from services.planner.adapters.wire.convert_node import node_from
from services.planner.core import feasibility
from services.planner.core.decide import Snapshot, configuration_of, pose
from services.planner.core.model import Configuration, Gpu, Pool, Score, Segment
from services.planner.core.online_search.measurement import SegmentCounters
from services.planner.core.strategies import REGISTRY
from services.planner.core.strategies.candidates import breaks_sla
from tests.support.fake_agent import Agent, Grid, active, deployment, living, planner, watch
from tests.support.planner.planner_client import Router, fleet_intensity, plan, quiet
from tests.support.waiting import until

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

DEMAND_RPS = 1500.0
EVALUATE_S = 0.6
TICK_S = 0.05
PACE = 60.0
SLOWER = 1.4
SLO_S = 0.2
NOISE = 1e-3


def slower(_variant: str, slice_name: str) -> tuple[float, float]:
    """Batches on small slices take longer, and more energy, than the profile says."""
    return (SLOWER, SLOWER) if slice_name < "3" else (1.0, 1.0)


def settings(
    folder: Path, grid: Grid, *, strategy: str = "base", evaluate_s: float = EVALUATE_S
) -> config.Deployment:
    """A deployment with online search, with one small slice's worth of demand."""
    made = deployment(
        folder,
        grid.port,
        strategy=strategy,
        online=config.Online(enabled=True, evaluate_s=evaluate_s),
        objective=config.Objective(carbon_weight=0.5),
        batch_sizes=(1, 4, 16),
        max_processes=1,
    )
    model = made.models["digits"].model_copy(update={"demand_rps": DEMAND_RPS})
    return made.model_copy(update={"models": {"digits": model}})


@dataclass
class Truth:
    """The true performance of the deployment's fleet, whatever its profiles say."""

    deployment: config.Deployment
    agent: Agent
    world: World = field(init=False)
    gpus: dict[str, Gpu] = field(init=False)

    def __post_init__(self) -> None:
        node = node_from(self.agent.report())
        zone = self.deployment.nodes[node.name]
        self.gpus = {
            gpu.uuid: Gpu(gpu.uuid, node.name, Pool(gpu.type, zone.zone, zone.pue, 100.0))
            for gpu in node.gpus
        }
        models = load_models(self.deployment)
        objective, strategy = self.deployment.planner.objective, self.deployment.planner.strategy
        snapshot = Snapshot(tuple(self.gpus.values()), models, (), {}, objective, strategy=strategy)
        self.world = World.behind(pose(snapshot, self.deployment.planner), slower)

    def placed(self, made: Plan) -> tuple[Segment, ...]:
        return feasibility.resumed(made, self.gpus.values(), self.world.problem.models)

    def configuration(self, made: Plan) -> Configuration:
        return configuration_of(self.placed(made), self.world.problem)

    def score(self, made: plan_pb2.Plan) -> Score:
        """Return what a plan is truly worth."""
        return self.world.score(self.configuration(from_message(made, Plan)))

    def keeps_sla(self, made: plan_pb2.Plan) -> bool:
        return not breaks_sla(self.score(made), self.world.problem, share=NOISE)


@dataclass
class Day:
    """Traffic on the fleet: the agent's counters grow, the router reports."""

    truth: Truth
    stub: PlannerServiceAsyncStub
    counters: dict[str, SegmentCounters] = field(default_factory=dict)
    now: Plan | None = None

    async def live(self) -> None:
        router, ticks = Router(self.stub), 0
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch(), name="day.watch")
            while True:
                await asyncio.sleep(TICK_S)
                self._serve()
                if ticks % 4 == 0 and self.now is not None:
                    latency_s = self.truth.world.score(self.truth.configuration(self.now)).latency_s
                    router.say(10**9, 40, 1.0, latency_s=latency_s["digits"])
                ticks += 1

    async def _watch(self) -> None:
        async for seen in self.stub.Watch(planner_pb2.WatchRequest()):
            if seen.plan.state == plan_pb2.PLAN_STATE_ACTIVE:
                self.now = from_message(seen.plan, Plan)

    def _serve(self) -> None:
        """Do a tick's work, and have the agent report it."""
        if self.now is None:
            return
        measurement = self.truth.world.measure(self.truth.configuration(self.now))
        for segment in self.truth.placed(self.now):
            seen = measurement.observed[segment.kind]
            part = PACE * TICK_S / SPAN_S / seen.segments
            done = SegmentCounters(
                round(seen.requests * part),
                round(seen.batches * part),
                seen.busy_s * part,
                seen.energy_j * part,
            )
            name = segment.segment_id
            self.counters[name] = self.counters.get(name, SegmentCounters()).plus(done)
        energy = inventory_pb2.GpuEnergy(gpu_uuid=self.truth.agent.gpus[0], total_j=1.0)
        for name, count in self.counters.items():
            energy.segments.add(
                segment_id=name,
                requests=count.requests,
                batches=count.batches,
                busy_s=count.busy_s,
                active_j=count.energy_j,
            )
        self.truth.agent.said.put_nowait(planner_pb2.JoinRequest(energy=[energy]))


@asynccontextmanager
async def traffic(truth: Truth, stub: PlannerServiceAsyncStub) -> AsyncIterator[None]:
    task = asyncio.create_task(Day(truth, stub).live(), name="day")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def evaluates(number: int) -> Callable[[planner_pb2.WatchResponse], bool]:
    """Return whether the active plan is an evaluation of this number."""
    return lambda seen: (
        seen.plan.state == plan_pb2.PLAN_STATE_ACTIVE
        and seen.plan.reason.startswith(f"evaluation {number}: ")
    )


def ended(seen: planner_pb2.WatchResponse) -> bool:
    return seen.plan.state == plan_pb2.PLAN_STATE_ACTIVE and seen.plan.reason.startswith("best of")


async def aim(stub: PlannerServiceAsyncStub, **objective: Any) -> None:
    await stub.SetObjective(planner_pb2.SetObjectiveRequest(**objective))


async def reasons(stub: PlannerServiceAsyncStub) -> list[str]:
    listed = await stub.ListPlans(planner_pb2.ListPlansRequest())
    return [each.reason for each in sorted(listed.plans, key=lambda each: each.version)]


async def evaluations(stub: PlannerServiceAsyncStub, since: int) -> list[plan_pb2.Plan]:
    """Return the plans of later versions that were evaluations."""
    versions = range(since + 1, len(await reasons(stub)) + 1)
    found = [await plan(stub, version) for version in versions]
    return [each for each in found if each.reason.startswith("evaluation ")]


@pytest.mark.parametrize("strategy", ["annealing", "random"])
async def test_a_search_ends_better_than_it_began_although_the_profiles_are_wrong(
    tmp_path: Path, grid: Grid, strategy: str
) -> None:
    """Nothing is tried that is believed to break the SLA; what the profiles advise would."""
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    made = settings(tmp_path, grid)
    truth = Truth(made, agent)
    found = await asyncio.to_thread(REGISTRY[strategy], truth.world.problem)
    advised = truth.world.score(found)
    async with planner(made) as stub, living(agent, stub), traffic(truth, stub):
        first = (await active(stub, 1)).plan
        await aim(stub, strategy=strategy)
        last = (await watch(stub, ended)).plan
        tried = await evaluations(stub, 1)

    assert breaks_sla(advised, truth.world.problem, share=NOISE)
    assert tried
    assert not any(each.degraded for each in tried)
    assert all(each.prediction.latency_s["digits"] <= SLO_S for each in tried)
    assert tried[0].reason == f"evaluation 1: objective: strategy base -> {strategy}"
    assert last.reason.startswith(f"best of {len(tried)} evaluations: objective: ")
    assert truth.keeps_sla(last)
    assert truth.score(last).objective > truth.score(first).objective


async def test_what_was_learned_survives_a_restart(tmp_path: Path, grid: Grid) -> None:
    """The search after it tries nothing that truly breaks the SLA; the one before it did."""
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    made = settings(tmp_path, grid)
    truth = Truth(made, agent)
    async with planner(made) as stub, living(agent, stub), traffic(truth, stub):
        await active(stub, 1)
        await aim(stub, strategy="annealing")
        before = (await watch(stub, ended)).plan.version
        ignorant = await evaluations(stub, 1)
    async with planner(made) as stub, living(agent, stub), traffic(truth, stub):
        await aim(stub, strategy="annealing", carbon_weight=0.9)
        await watch(stub, lambda seen: ended(seen) and seen.plan.version > before)
        taught = await evaluations(stub, before)
    async with open_store(made.planner.database) as store:
        beliefs = await store.beliefs()

    assert not all(map(truth.keeps_sla, ignorant))
    assert all(map(truth.keeps_sla, taught))
    small = [seen for cell, seen in beliefs.evidence.items() if cell.profile < "3"]
    assert [seen.log_time for seen in small] == pytest.approx(
        [math.log(SLOWER)] * len(small), abs=0.05
    )


async def test_a_restart_drops_the_search_and_begins_another(tmp_path: Path, grid: Grid) -> None:
    agent = Agent("node-a", ("GPU-1",))
    made = settings(tmp_path, grid, strategy="annealing", evaluate_s=60.0)
    async with planner(made) as stub, living(agent, stub):
        await watch(stub, evaluates(1))
    async with planner(made) as stub, living(agent, stub):
        seen = await watch(stub, lambda seen: seen.plan.version > 1)

    assert seen.plan.reason == "evaluation 1: retry: the search that plan 1 is part of was cut"


async def test_an_order_drops_the_search_and_news_begin_another(tmp_path: Path, grid: Grid) -> None:
    """A pinned evaluation is held like any plan; without the pin the search was for nothing."""
    agent = Agent("node-a", ("GPU-1",))
    made = settings(tmp_path, grid, strategy="annealing", evaluate_s=60.0)
    async with planner(made) as stub, living(agent, stub):
        await watch(stub, evaluates(1))
        await stub.Pin(planner_pb2.PinRequest())
        grid.intensity.publish(400.0)
        await until(lambda: fleet_intensity(stub, 400.0))
        await quiet(stub, agent)
        held = await reasons(stub)
        await stub.Unpin(planner_pb2.UnpinRequest())
        again = await watch(stub, lambda seen: seen.plan.version == 2)
        grid.intensity.publish(800.0)
        news = await watch(stub, lambda seen: seen.plan.version == 3)

    assert held == ["evaluation 1: first plan: 1 node, 1 GPU"]
    assert again.plan.reason == "evaluation 1: carbon: Z 100.0 -> 400.0 gCO2e/kWh (+300.0 %)"
    assert news.plan.reason == "evaluation 1: carbon: Z 400.0 -> 800.0 gCO2e/kWh (+100.0 %)"


async def test_late_requests_end_an_evaluation_at_once(tmp_path: Path, grid: Grid) -> None:
    agent = Agent("node-a", ("GPU-1",))
    made = settings(tmp_path, grid, strategy="annealing", evaluate_s=60.0)
    async with planner(made) as stub, living(agent, stub):
        await watch(stub, evaluates(1))
        Router(stub).say(10**9, 40, late=40, latency_s=0.9)
        Router(stub, "r-2").say(10**9, 40, late=40, latency_s=0.9)
        seen = await watch(stub, lambda seen: seen.plan.version == 2)

    assert seen.plan.reason == ("none of 1 evaluation kept the SLA: first plan: 1 node, 1 GPU")


async def test_strategies_that_do_not_search_plan_as_ever(tmp_path: Path, grid: Grid) -> None:
    agent = Agent("node-a", ("GPU-1",))
    made = settings(tmp_path, grid, strategy="exact")
    async with planner(made) as stub, living(agent, stub):
        seen = await active(stub, 1)

    assert seen.plan.reason == "first plan: 1 node, 1 GPU"
