"""A request's energy under BASE, and the embodied carbon of a GPU."""

import pytest

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.config import Embodied
from services.planner.core.accounting.baseline import baseline_rates
from services.planner.core.accounting.site import embodied_carbon
from services.planner.core.model import Problem
from services.planner.core.problem.catalog import whole
from services.planner.core.problem.score import score
from services.planner.core.strategies.base import base
from tests.support.planner.fleets import fleet, gpu_type, model, pool, problem

YEAR_S = 365.25 * 86_400


def test_with_full_batches_it_is_what_the_planner_says_that_base_draws() -> None:
    """Requests times rates are the active power of BASE's own score."""
    posed = problem(fleet((pool(), 4), (pool("v100"), 2)), [model(demand_rps=40.0)])
    scored = score(posed, base(posed))

    (name, found) = next(iter(baseline_rates(posed, {"vision": 1e6}).items()))

    assert name == "vision"
    assert sum(rate.share for rate in found) == pytest.approx(1)
    assert sum(rate.energy_j for rate in found) * 40.0 == pytest.approx(scored.active_power_w)


def test_the_fewer_arrive_the_emptier_are_bases_batches_too() -> None:
    """The load provided for decides where requests go; the arrivals decide how full batches are."""
    posed = problem(fleet((pool(), 4)), [model(demand_rps=400.0)])
    found = [baseline_rates(posed, {"vision": rps})["vision"][0] for rps in (0.0, 5.0, 50.0, 400.0)]
    alone = model().best.profile.batch(pool().type.shape(whole(pool())), 1, 1)

    energies_j = [rate.energy_j for rate in found]
    assert alone is not None
    assert energies_j[0] == pytest.approx(alone.energy_j)
    assert energies_j == sorted(energies_j, reverse=True)
    assert energies_j[3] == baseline_rates(posed)["vision"][0].energy_j < 0.9 * energies_j[0]


def test_requests_go_where_base_hosts_the_model() -> None:
    """A node's part is as large as its part of the pool that serves."""
    both = pool()
    gpus = (*fleet((both, 1)), *fleet((both, 3), (both, 3))[3:])
    found = baseline_rates(problem(gpus, [model(demand_rps=10.0)]))["vision"]

    assert {rate.node: rate.share for rate in found} == pytest.approx(
        {"node-0": 0.25, "node-1": 0.75}
    )


def test_a_model_for_which_base_has_no_gpu_left_is_hosted_alone() -> None:
    """Its requests are compared with a whole GPU of their own."""
    models = [model(name, demand_rps=rps) for name, rps in (("big", 50.0), ("small", 0.0))]
    found = baseline_rates(problem(fleet((pool(), 1)), models), {"big": 0.0})

    assert found["small"][0].energy_j == pytest.approx(found["big"][0].energy_j)


def test_without_a_gpu_nothing_is_known() -> None:
    """A fleet without GPUs has no rates, and no error."""
    assert baseline_rates(Problem((), (model(),), (), problem((), ()).objective)) == {"vision": ()}


def test_a_gpus_making_is_spread_over_its_lifetime() -> None:
    """Five years of its rate are what making it cost."""
    board = embodied_carbon(Embodied(lifetime_y=5.0, kgco2e={"v100": 100.0}), gpu_type("v100"), ())

    assert board.embodied_gco2e_per_s * 5 * YEAR_S == pytest.approx(100e3)
    assert board.held == {}


def test_published_figures_hold_where_none_is_given() -> None:
    """A figure of the deployment comes first; a type without any costs nothing."""
    making = Embodied(lifetime_y=1.0, kgco2e={"a100-40gb": 7.0})
    found = {
        name: embodied_carbon(making, gpu_type(name), ()).embodied_gco2e_per_s * YEAR_S / 1e3
        for name in ("a100-40gb", "h100-80gb", "t4")
    }

    assert found == pytest.approx({"a100-40gb": 7.0, "h100-80gb": 164.0, "t4": 0.0})


def test_models_hold_their_slices_part_of_the_multiprocessors() -> None:
    """The part of a GPU that is cut off or that no model holds stays the node's."""
    slices = [
        ("m", Placement("1g.5gb", 0)),
        ("m", Placement("1g.5gb", 1)),
        ("n", Placement("3g.20gb", 4)),
    ]
    board = embodied_carbon(Embodied(lifetime_y=4.0), gpu_type(), slices)

    assert board.held == pytest.approx({"m": 28 / 108, "n": 42 / 108})
