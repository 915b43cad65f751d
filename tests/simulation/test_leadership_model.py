"""The checked model of leadership, terms and ownership; see `leadership_model`."""

import pytest

from services.planner.core.lease import ACTS_S, EXPIRES_S, RENEW_S
from tests.simulation.leadership_model import (
    Rules,
    one_acts,
    one_owner,
    plans_by_term,
    search,
    steps_by_term,
    terms_grow,
)


def test_no_history_of_two_planners_has_two_that_act_or_a_plan_of_an_older_term() -> None:
    """A planner may stand still or die at any moment; its lock may be broken meanwhile."""
    found = search(Rules(until_s=4))

    assert (found.broken, found.history) == ("", ())
    assert found.states > 10_000


def test_orders_that_come_late_are_refused_and_a_gpu_has_one_node() -> None:
    """Each order may arrive at any later time, or never."""
    found = search(Rules(orders=True, until_s=0))

    assert (found.broken, found.history) == ("", ())
    assert found.states > 1_000


def test_a_database_session_that_ends_leaves_plans_and_agents_in_order() -> None:
    """Under PostgreSQL two may act for a moment, as the documentation says; nothing interleaves."""
    assert search(Rules(sessions=True)).broken == "one_acts"
    rest = (terms_grow, plans_by_term, steps_by_term, one_owner)
    assert not search(Rules(sessions=True, until_s=1), rest).broken
    assert not search(Rules(sessions=True, orders=True, until_s=0), rest).broken


@pytest.mark.parametrize(
    ("broken_rules", "invariant"),
    [
        (Rules(acts_s=4), one_acts),
        (Rules(proven_end=False), one_acts),
        (Rules(fenced_store=False), plans_by_term),
        (Rules(orders=True, until_s=0, fenced_agents=False), steps_by_term),
        (Rules(orders=True, until_s=0, owners_first=False), one_owner),
    ],
    ids=["acts too long", "any free lock", "unfenced store", "unfenced agents", "owners later"],
)
def test_each_rule_is_needed(broken_rules: Rules, invariant: object) -> None:
    """The search finds a history for every rule that is left out: the model can fail."""
    found = search(broken_rules, (invariant,))  # type: ignore[arg-type]

    assert found.broken == getattr(invariant, "__name__", "")


def test_the_product_has_the_order_of_times_that_the_model_has() -> None:
    """A holder renews, stops acting, and only then can its lease expire for others."""
    assert RENEW_S < ACTS_S < EXPIRES_S
