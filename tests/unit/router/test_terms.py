"""Routing tables that a router accepts, by term."""

import pytest

from services.router.core.model import Instance, ModelRoutes, RoutingTable

INSTANCE = Instance("w:1", "s-1", "digits", "small", 0.9, 1.0, 1, "Z", 1.0)


def table(term: int, *instances: Instance) -> RoutingTable:
    return RoutingTable(1, 1, (ModelRoutes("digits", 0.1, 95, "shares", instances),), term)


@pytest.mark.parametrize(
    ("term", "taken"), [(4, False), (5, True), (6, True), pytest.param(0, True, id="no terms")]
)
def test_the_table_of_a_lower_term_is_refused(term: int, taken: bool) -> None:
    """The planner of a lower term leads no more; one of before there were terms says none."""
    assert table(term, INSTANCE).supersedes(table(5, INSTANCE), planned=True) is taken


def test_an_empty_table_replaces_routes_only_where_the_planner_has_planned() -> None:
    """A new planner on an empty database knows of no fleet: what serves is kept."""
    known = table(1, INSTANCE)

    assert not table(2).supersedes(known, planned=False)
    assert table(2).supersedes(known, planned=True)
    assert table(2).supersedes(table(1), planned=False)
    assert table(1).supersedes(known, planned=False), "what the same planner takes back"
