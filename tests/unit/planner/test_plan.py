"""Plans as records."""

from services.planner.core.plan import prediction_of
from services.planner.core.problem.score import score
from services.planner.core.strategies import REGISTRY
from tests.support.planner import fleets


def test_a_prediction_has_every_figure_that_it_shares_with_a_score() -> None:
    """A figure that a decision computes is predicted once the contract has a field for it."""
    problem = fleets.problem(fleets.fleet((fleets.pool(), 2)), [fleets.model()])
    scored = score(problem, REGISTRY["base"](problem))
    found = prediction_of(scored, gap=0.25)

    assert (found.power_w, found.active_power_w) == (scored.power_w, scored.active_power_w)
    assert 0 < found.active_power_w < found.power_w
    assert (found.gpus, found.objective, found.gap) == (scored.gpus, scored.objective, 0.25)
    assert found.accuracy == scored.accuracy
