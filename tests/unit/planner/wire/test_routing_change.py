"""The change of a routing table that is sent to a router which has the one before."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.planner.v1 import plan_pb2
from cinquefoil.planner.v1.records import Instance, ModelRoutes, RoutingTable
from services.kit.errors import FailedPrecondition
from services.planner.adapters.wire.convert import routing_to
from services.planner.adapters.wire.routing_change import routing_change
from services.router.adapters.convert import changed_table, to_table
from tests.support.examples import examples


def table(revision: int, weights: dict[int, float], model: str = "digits") -> RoutingTable:
    """Return a table of one model: instances by number, with their weights."""
    total = sum(weights.values())
    instances = tuple(
        Instance(f"h:{number}", f"s-{number}", "small", 0.9, weight / total, 8, "Z", 1.2)
        for number, weight in weights.items()
    )
    return RoutingTable(revision, 1, (ModelRoutes(model, "top-1", 0.2, 95, "shares", instances),))


weights = st.dictionaries(st.integers(1, 12), st.floats(0.1, 10.0), min_size=1)


@examples(0.4)
@given(weights, weights)
def test_a_table_and_its_change_make_the_next_table(
    before: dict[int, float], after: dict[int, float]
) -> None:
    """Whatever comes, goes or gets another share."""
    old, new = table(4, before), table(5, after)
    message = routing_change(old, new)

    found = changed_table(to_table(routing_to(old)), message)

    expected = to_table(routing_to(new))
    (mine,), (wanted,) = found.models, expected.models
    shares = {each.id: each.share for each in mine.instances}
    assert (found.revision, found.plan_version) == (5, 1)
    assert shares == pytest.approx({each.id: each.share for each in wanted.instances})
    assert {replace(each, share=0.0) for each in mine.instances} == {
        replace(each, share=0.0) for each in wanted.instances
    }


def test_a_lost_worker_is_all_that_is_sent_although_every_share_grows() -> None:
    many = dict.fromkeys(range(1, 101), 1.0)
    change = routing_change(table(1, many), table(2, {n: 1.0 for n in many if n != 7}))

    (digits,) = change.models
    (removed,) = digits.removed
    assert (removed.endpoint, removed.segment_id) == ("h:7", "s-7")
    assert not digits.routes.instances


def test_models_that_come_and_go_are_named() -> None:
    change = routing_change(table(1, {1: 1.0}, "digits"), table(2, {1: 1.0}, "letters"))

    assert change.removed_models == ["digits"]
    assert [each.routes.model for each in change.models] == ["letters"]
    found = changed_table(to_table(routing_to(table(1, {1: 1.0}))), change)
    assert [each.model for each in found.models] == ["letters"]


def test_a_change_of_another_table_is_refused() -> None:
    change = plan_pb2.RoutingChange(base_revision=3, revision=4)

    with pytest.raises(FailedPrecondition, match="routing table 3 came for 1"):
        changed_table(to_table(routing_to(table(1, {1: 1.0}))), change)


@examples(0.4)
@given(weights, st.data())
def test_of_instances_that_stay_the_same_objects_only_others_are_looked_at(
    before: dict[int, float], data: st.DataObject
) -> None:
    """Instances that move, go, replace another or get another share make the next table."""
    old = table(4, before)
    (routes,) = old.models
    instances = list(routes.instances)
    for place in data.draw(st.sets(st.integers(0, len(instances) - 1))):
        was = instances[place]
        changed = data.draw(
            st.sampled_from(
                [
                    replace(was, endpoint=f"moved:{place}"),
                    replace(was, segment_id=f"other-{place}", share=was.share / 2),
                    replace(was, share=was.share * 2),
                    replace(was, pue=1.5),
                    replace(was),
                ]
            )
        )
        instances[place] = changed
    total = sum(each.share for each in instances)
    if any(each.share not in {was.share for was in routes.instances} for each in instances):
        instances = [replace(each, share=each.share / total) for each in instances]
    new = replace(old, revision=5, models=(replace(routes, instances=tuple(instances)),))

    found = changed_table(to_table(routing_to(old)), routing_change(old, new))

    shares = {each.id: each.share for each in found.models[0].instances}
    wanted = to_table(routing_to(new)).models[0].instances
    assert shares == pytest.approx({each.id: each.share for each in wanted})
    assert {replace(each, share=0.0) for each in found.models[0].instances} == {
        replace(each, share=0.0) for each in wanted
    }
