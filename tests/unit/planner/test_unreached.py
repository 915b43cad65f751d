"""Segments that no router reaches: when they are replaced, and how often at most."""

from services.planner.core.unreached import Unreached

SERVING = {"a": ("a1", "a2"), "b": ("b1",)}
NODES = ("a", "b")


def given_up_after(unreached: Unreached, lost: set[str], at_s: float, until_s: float) -> list[str]:
    """Report the same segments each second; return the nodes with segments to replace."""
    found = []
    while at_s < until_s:
        found += unreached.observe(lost, SERVING, NODES, at_s)
        at_s += 1.0
    return found


def test_a_segment_is_replaced_after_no_router_has_reached_it_for_a_while() -> None:
    """The node keeps its place: its other segment is reached."""
    unreached = Unreached()

    assert not given_up_after(unreached, {"a1"}, 0.0, 15.0)
    assert given_up_after(unreached, {"a1"}, 15.0, 20.0) == ["a"]
    assert unreached.given_up == {"a1"}
    assert not unreached.avoided(20.0)


def test_one_report_that_reaches_a_segment_ends_the_suspicion() -> None:
    unreached = Unreached()
    given_up_after(unreached, {"a1"}, 0.0, 14.0)
    given_up_after(unreached, set(), 14.0, 15.0)

    assert not given_up_after(unreached, {"a1"}, 15.0, 29.0)
    assert given_up_after(unreached, {"a1"}, 29.0, 31.0) == ["a"]
    given_up_after(unreached, set(), 31.0, 32.0)
    assert not unreached.given_up, "what is reached again stays"


def test_a_node_of_which_nothing_is_reached_is_avoided_for_a_while() -> None:
    unreached = Unreached()
    given_up_after(unreached, {"a1", "a2"}, 0.0, 16.0)

    assert unreached.avoided(16.0) == {"a"}
    assert not unreached.avoided(700.0)


def test_a_node_without_another_is_not_avoided() -> None:
    unreached = Unreached()
    for at_s in range(17):
        unreached.observe({"a1", "a2"}, SERVING, (), at_s)

    assert unreached.given_up == {"a1", "a2"}
    assert not unreached.avoided(17.0)


def test_routers_that_lie_replace_one_node_at_a_time_and_less_and_less_often() -> None:
    """Within a day at most ten times each, not every quarter of a minute."""
    unreached = Unreached()
    found = given_up_after(unreached, {"a1", "a2", "b1"}, 0.0, 70.0)
    assert found == ["a"]
    assert given_up_after(unreached, {"a1", "a2", "b1"}, 70.0, 80.0) == ["b"]

    for at_s in range(80, 86_400, 20):
        serving = {"a": (f"a{at_s // 100}",), "b": (f"b{at_s // 100}",)}
        lost = {each for segments in serving.values() for each in segments}
        found += unreached.observe(lost, serving, NODES, float(at_s))
    assert found.count("a") <= 10
