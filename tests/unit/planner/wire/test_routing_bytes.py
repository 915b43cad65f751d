"""A table's bytes, made of the parts of the one before."""

from dataclasses import replace

import pytest

from cinquefoil.planner.v1 import plan_pb2
from cinquefoil.planner.v1.records import Instance, ModelRoutes, RoutingTable
from services.planner.adapters.wire import routing_bytes
from services.planner.adapters.wire.convert import routing_to
from services.planner.adapters.wire.routing_bytes import RoutingEncoder


def instance(number: int, host: str = "h") -> Instance:
    return Instance(f"{host}:{number}", f"s-{number}", "small", 0.9, 0.1, 8, "Z", 1.2)


def model(name: str, count: int) -> ModelRoutes:
    instances = tuple(map(instance, range(count)))
    return ModelRoutes(name, "top-1", 0.2, 95, "shares", instances, intensity_threshold=0.5)


FIRST = RoutingTable(7, 3, (model("digits", 300), model("letters", 128), model("idle", 0)), 2)
DIGITS, LETTERS, IDLE = FIRST.models


@pytest.mark.parametrize(
    "table",
    [
        FIRST,
        replace(FIRST, revision=8, term=3),
        replace(FIRST, models=(replace(DIGITS, instances=DIGITS.instances[1:]), LETTERS)),
        replace(FIRST, models=(replace(DIGITS, instances=()), model("letters", 129))),
        replace(FIRST, models=(IDLE, LETTERS, DIGITS)),
        RoutingTable(0, 0, ()),
    ],
)
def test_whatever_changes_the_bytes_are_the_tables(table: RoutingTable) -> None:
    encoder = RoutingEncoder()
    for each in (FIRST, table, FIRST):
        assert plan_pb2.RoutingTable.FromString(encoder(each)) == routing_to(each)


def test_a_worker_that_moves_has_its_part_encoded_again_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a fleet's thousands of workers, one moves at a time."""
    encoder, encoded = RoutingEncoder(), []
    encoder(FIRST)

    def noted(each: Instance) -> plan_pb2.Instance:
        encoded.append(each)
        return plan_pb2.Instance(endpoint=each.endpoint)

    monkeypatch.setattr(routing_bytes, "instance_to", noted)
    moved = list(DIGITS.instances)
    moved[200] = instance(200, "elsewhere")
    encoder(replace(FIRST, models=(replace(DIGITS, instances=tuple(moved)), LETTERS, IDLE)))

    assert encoded == moved[128:256]
