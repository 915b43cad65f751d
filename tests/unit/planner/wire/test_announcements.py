"""Announcements to subscribers: encoded once, and to routers no more than they need."""

import pytest

from cinquefoil.condition.v1.records import Condition, ConditionKind
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.planner.v1.records import Plan, RoutingTable
from services.kit.rpc.condition_messages import condition_messages
from services.kit.rpc.record_mapping import to_message
from services.planner.adapters.wire import announcements
from services.planner.adapters.wire.announcements import AnnouncementEncoder
from services.planner.adapters.wire.convert import routing_to
from services.planner.core.routing_table import Announcement
from tests.support.planner.plans import plan, segment

PLAN = plan(1, [segment("small", 0)])


def test_all_subscribers_share_one_encoding() -> None:
    encoder = AnnouncementEncoder(lambda: "abc")
    said = Announcement(None, RoutingTable(1, 0, ()))

    assert encoder.whole(said) is encoder.whole(said)
    assert planner_pb2.WatchResponse.FromString(encoder.whole(said)).config_digest == "abc"


def sent(*said: Announcement) -> list[planner_pb2.WatchResponse]:
    """Return what a router is sent of these announcements."""
    feed = AnnouncementEncoder(lambda: "").for_router()
    encoded = [feed(each) for each in said]
    return [planner_pb2.WatchResponse.FromString(each) for each in encoded if each]


def test_a_router_gets_the_table_once_and_then_what_changes() -> None:
    first, second = sent(
        Announcement(None, RoutingTable(1, 0, ())), Announcement(None, RoutingTable(2, 3, ()))
    )

    assert first.routing.revision == 1
    assert not second.HasField("routing")
    change = second.routing_change
    assert (change.base_revision, change.revision, change.plan_version) == (1, 2, 3)


def test_a_router_is_not_sent_what_it_knows() -> None:
    same = RoutingTable(1, 0, ())

    assert len(sent(Announcement(None, same), Announcement(None, same))) == 1


def test_a_router_hears_of_a_few_nodes_and_of_every_model() -> None:
    """The size of its announcements does not grow with the fleet."""
    nodes = [Condition(ConditionKind.NODE_AWAY, f"node/{n}", "away") for n in range(100)]
    model = Condition(ConditionKind.NO_VARIANT_MEETS_SLO, "model/digits", "too slow")
    (response,) = sent(Announcement(None, RoutingTable(1, 0, ()), (*nodes, model)))

    subjects = [each.subject for each in response.conditions]
    assert subjects == [*(f"node/{n}" for n in range(8)), "model/digits"]


def test_of_an_announcement_only_what_is_new_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of thousands of segments is not encoded again because a node joins."""
    encoded: list[object] = []

    def counted(plan: Plan, kind: type[plan_pb2.Plan]) -> plan_pb2.Plan:
        encoded.append(plan)
        return to_message(plan, kind)

    monkeypatch.setattr(announcements, "to_message", counted)
    encoder, table = AnnouncementEncoder(lambda: "abc"), RoutingTable(1, 0, ())
    joined = Condition(ConditionKind.NODE_AWAY, "node/a", "away")
    for conditions in ((), (joined,), ()):
        raw = encoder.whole(Announcement(PLAN, table, conditions))

        assert planner_pb2.WatchResponse.FromString(raw) == planner_pb2.WatchResponse(
            plan=to_message(PLAN, plan_pb2.Plan),
            routing=routing_to(table),
            conditions=condition_messages(conditions),
            config_digest="abc",
        )
    assert encoded == [PLAN]
