"""Electricity prices and carbon budgets on one planner, over real gRPC and a restart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cinquefoil.condition.v1 import condition_pb2
from cinquefoil.planner.v1 import planner_pb2 as pb
from services.kit import config
from services.kit.config.prices import CsvPrice
from tests.rpc.planner.test_account import J_PER_KWH, account, send_energy
from tests.support.fake_agent import Agent, Grid, active, deployment, living, planner
from tests.support.planner.planner_client import fleet_energy, fleet_intensity
from tests.support.waiting import until

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

SHORT = condition_pb2.CONDITION_KIND_CARBON_BUDGET_SHORT
UNKNOWN = condition_pb2.CONDITION_KIND_PRICE_UNKNOWN
SPENT_J = 2000.0
PUE = 1.2


async def sentences(stub: PlannerServiceAsyncStub) -> dict[int, str]:
    """Return the sentence of each condition, by kind."""
    fleet = await stub.GetFleet(pb.GetFleetRequest())
    return {each.kind: each.sentence for each in fleet.conditions}


async def test_prices_and_a_carbon_budget_follow_what_is_metered(
    tmp_path: Path, grid: Grid
) -> None:
    """Energy has a cost; a budget is used up by it, and stays so; a bad price is named."""
    prices = tmp_path / "prices.csv"
    prices.write_text("start,eur_per_kwh\n2020-01-01,0.3\n2099-01-01,0\n")
    spent_gco2e = SPENT_J * PUE / J_PER_KWH * 100.0
    budget = config.CarbonBudget(kg=0.75e-3 * spent_gco2e, per="year")
    settings = deployment(tmp_path, grid.port, carbon_budgets=[budget]).model_copy(
        update={"grid": config.Grid(prices={"Z": CsvPrice(kind="csv", path=prices)})}
    )
    agent = Agent("node-a", ("GPU-1",))

    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        await until(lambda: fleet_intensity(stub, 100.0))
        await until(lambda: is_fine(stub))
        for share in (1, 2):
            send_energy(agent, share * SPENT_J, share * 100)
        await until(lambda: fleet_energy(stub, SPENT_J))
        await until(lambda: is_short(stub))
        by_model = await account(stub, pb.ACCOUNT_GROUPING_MODEL)
        fleet = await stub.GetFleet(pb.GetFleetRequest())

    paid_eur = SPENT_J * PUE / J_PER_KWH * 0.3
    assert sum(entry.cost_eur for entry in by_model) == pytest.approx(paid_eur)
    assert sum(entry.cost_eur for entry in by_model if entry.model) == pytest.approx(paid_eur / 2)
    assert fleet.HasField("cost_eur_per_h")
    assert fleet.carbon_budgets[0].spent_gco2e == pytest.approx(spent_gco2e)

    prices.write_text("start,eur_per_kwh\n2020-01-01,300\n")
    async with planner(settings) as stub, living(agent, stub):
        await until(lambda: is_short(stub))
        await until(lambda: names(stub, "prices.csv"))
        fleet = await stub.GetFleet(pb.GetFleetRequest())
        assert fleet.carbon_budgets[0].spent_gco2e == pytest.approx(spent_gco2e)
        assert not fleet.HasField("cost_eur_per_h")


async def is_fine(stub: PlannerServiceAsyncStub) -> bool:
    return not {SHORT, UNKNOWN} & (await sentences(stub)).keys()


async def is_short(stub: PlannerServiceAsyncStub) -> bool:
    return "is used up" in (await sentences(stub)).get(SHORT, "")


async def names(stub: PlannerServiceAsyncStub, text: str) -> bool:
    return text in (await sentences(stub)).get(UNKNOWN, "")
