"""Work that the planner of a large fleet does not do with every report."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cinquefoil.condition.v1.records import Condition, ConditionKind
from cinquefoil.gpuagent.v1.records import Placement, Segment, SegmentSpec, SegmentState
from cinquefoil.planner.v1.records import ModelRoutes, PlannedSegment
from services.kit import config
from services.kit.config import Objective
from services.kit.mig import WHOLE
from services.planner.adapters.store import open_store
from services.planner.change_event import ChangeEvent
from services.planner.control import publisher as publishing
from services.planner.control.counterfactual import Counterfactual
from services.planner.control.publisher import Publisher
from services.planner.control.serving_policies import ServingPolicies
from services.planner.core.accounting.baseline import BaselineRates
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.decide import Snapshot
from services.planner.core.fleet import Fleet, Node, NodeGpu
from services.planner.core.forecast.demand import ConfiguredLoad, Demand
from services.planner.core.routing_table import Announcement, routes
from services.planner.core.service_level import ServiceLevel
from tests.support.planner import fleets
from tests.support.virtual_clock import VirtualClock

DEPLOYMENT = config.Deployment.model_validate(
    {
        "version": "v1",
        "carbon": {"zones": {"Z": {"source": {"kind": "static", "intensity_gco2e_per_kwh": 100}}}},
        "nodes": {"a": {"zone": "Z"}},
        "models": {
            "digits": {
                "slo": {"latency_s": 0.2},
                "demand_rps": 1.0,
                "variants": {
                    "small": {
                        "file": "small.onnx",
                        "accuracy": 0.9,
                        "profile": {"kind": "analytic", "gmacs_per_item": 1.0},
                    }
                },
            }
        },
    }
)
WHOLE_GPU = Placement(WHOLE, 0)
NODES = {name: config.Node(zone="Z", control=True) for name in ("a", "b")}


def node(name: str) -> Node:
    return Node(
        name, "Z", (NodeGpu(f"GPU-{name}", fleets.gpu_type("t4"), (Placement(WHOLE, 0),)),), ()
    )


async def test_base_is_computed_when_the_fleet_changes_not_with_every_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Routers report a hundred times a second: the fleet is not looked through each time.

    The clock stands still: on a busy machine, what BASE takes would be paused after for as long.
    """
    clock, looks, found = VirtualClock(datetime.now(UTC)), [], asyncio.Queue[BaselineRates]()
    model = fleets.model("digits")
    demand = Demand({model.name: ConfiguredLoad(1.0, 1.0)}, now_s=clock.monotonic)
    fleet, level = Fleet(NODES, 0.0), ServiceLevel({})
    state = ClusterState(clock, ChangeEvent(), (model,), fleet, demand, level, Objective(), "base")
    snapshot = ClusterState.snapshot

    def counted(self: ClusterState, shares: dict[str, float]) -> Snapshot | None:
        looks.append(self)
        return snapshot(self, shares)

    monkeypatch.setattr(ClusterState, "snapshot", counted)
    state.fleet.report(node("a"), clock.monotonic())
    state.update_intensity({"Z": 100.0})
    keeping = asyncio.create_task(Counterfactual(state, found.put_nowait).keep())
    try:
        async with asyncio.timeout(30.0):
            await found.get()
            for _ in range(20):
                state.changed.notify()
                await asyncio.sleep(0)
            state.fleet.report(node("b"), clock.monotonic())
            state.changed.notify()
            await found.get()
    finally:
        keeping.cancel()

    assert len(looks) == 2


async def test_conditions_that_change_together_are_published_together(tmp_path: Path) -> None:
    """Every subscriber is sent conditions: not with each of the nodes that join at once."""
    away = [Condition(ConditionKind.NODE_AWAY, f"node/{n}", "away") for n in range(20)]
    changed, published = ChangeEvent(), []
    async with open_store(tmp_path / "planner.sqlite3") as store:
        publisher = Publisher(
            DEPLOYMENT,
            store,
            Fleet({f"node-{n}": NODES["a"] for n in range(100)}, 0.0),
            ServingPolicies(DEPLOYMENT, store),
            lambda: tuple(away),
            lambda: 1,
        )
        following = asyncio.create_task(publisher.follow(changed))
        try:
            async with asyncio.timeout(30.0):
                async for said in publisher.board.follow():
                    published.append(len(said.conditions))
                    if not said.conditions and len(published) > 1:
                        break
                    while said.conditions and away:
                        away.pop()
                        changed.notify()
                        await asyncio.sleep(0)
        finally:
            following.cancel()

    assert published == [0, 20, 0]


async def test_a_worker_that_moves_does_not_rebuild_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of thousands of workers one restarts: routers hear of it, and the others are not compared."""
    made, changed, fleet = [], ChangeEvent(), Fleet(NODES, 0.0)
    specs = {name: SegmentSpec(f"s-{name}", "digits", "small", 8, 1, f"GPU-{name}", WHOLE_GPU)
             for name in NODES}  # fmt: skip

    def report(name: str, port: int) -> None:
        run = Segment(specs[name], SegmentState.READY, (f"{name}:{port}",))
        fleet.report(replace(node(name), segments=(run,)), 0.0)
        changed.notify()

    def endpoints(said: Announcement) -> dict[str, str]:
        (digits,) = said.routing.models
        return {each.segment_id: each.endpoint for each in digits.instances}

    def is_at(endpoint: str, said: Announcement) -> bool:
        return endpoints(said)["s-a"] == endpoint

    def counted(*arguments: Any) -> tuple[ModelRoutes, ...]:
        made.append(arguments)
        return routes(*arguments)

    async with open_store(tmp_path / "planner.sqlite3") as store:
        policies = ServingPolicies(DEPLOYMENT, store)
        publisher = Publisher(DEPLOYMENT, store, fleet, policies, lambda: (), lambda: 1)
        for name in NODES:
            report(name, 1)
        await publisher.serve(1, [PlannedSegment(specs[n], n, 0.5, 10.0, 0.1) for n in NODES])
        monkeypatch.setattr(publishing, "routes", counted)
        following = asyncio.create_task(publisher.follow(changed))
        try:
            async with asyncio.timeout(30.0):
                for port in (2, 3):
                    report("a", port)
                    said = await publisher.board.until(partial(is_at, f"a:{port}"))
            assert await store.routing() == said.routing
        finally:
            following.cancel()

    assert made == []
    assert said.routing.revision == 3
    assert endpoints(said) == {"s-a": "a:3", "s-b": "b:1"}
