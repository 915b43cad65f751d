"""Models by name, and the change from one routing table to the next."""

import pytest

from cinquefoil.condition.v1.records import Condition, ConditionKind
from services.kit.errors import InvalidArgument, NotFound, Unavailable
from services.router.core.dispatch.decisions import Dial, Fail, Reply, Send
from services.router.core.model import Instance, Limits, ModelRoutes, Request, RoutingTable
from services.router.core.model_registry import ModelRegistry
from services.router.core.pending_request import PendingRequest
from services.router.core.readiness import Readiness
from services.router.core.worker_port import Hello


def table(revision: int, **segments: list[str]) -> RoutingTable:
    """A table of models with instances named after their segments."""
    return RoutingTable(
        revision,
        plan_version=1,
        models=tuple(
            ModelRoutes(
                model,
                slo_latency_s=0.1,
                slo_percentile=95,
                instance_choice="idle_longest",
                instances=tuple(
                    Instance(f"{name}:1", name, model, "v", 0.9, 1.0, 1) for name in names
                ),
            )
            for model, names in segments.items()
        ),
    )


def request(number: int, model: str) -> PendingRequest:
    return PendingRequest(Request(number, model, b"", arrived_s=0.0, deadline_s=1.0))


def test_a_new_table_dials_what_is_new_and_leaves_alone_what_stays() -> None:
    registry = ModelRegistry(table(0, cats=[]), {})
    registry.swap(table(1, cats=["a"]))

    (dialed,) = registry.swap(table(2, cats=["a", "b"], dogs=[]))

    assert isinstance(dialed, Dial)
    assert dialed.instance.segment_id == "b"
    assert registry.table.revision == 2


def test_a_model_that_a_reload_brings_has_the_limits_of_the_file() -> None:
    registry = ModelRegistry(table(1, cats=["a"]), {"cats": Limits()})
    registry.limits.update({"dogs": Limits(max_queue=7)})
    registry.swap(table(2, cats=["a"], dogs=["b"]))

    assert registry.model("dogs").limits.max_queue == 7


def test_a_model_that_leaves_the_table_still_answers_what_is_being_computed() -> None:
    registry = ModelRegistry(table(1, cats=["a"]), {"cats": Limits()})
    (dialed,) = registry.swap(table(2, cats=["a"]))
    assert isinstance(dialed, Dial)
    cats = registry.model("cats")
    cats.up(dialed.instance.id, Hello(1, b""))
    (sent,) = cats.offer(request(1, "cats"))
    cats.offer(request(2, "cats"))

    gone = registry.swap(table(3, dogs=[]))
    (answered, *_) = cats.result(dialed.instance.id, 1)

    assert isinstance(sent, Send)
    assert [type(decision) for decision in gone] == [Fail]
    assert isinstance(answered, Reply)
    with pytest.raises(NotFound, match="no model 'cats'; models are dogs"):
        registry.model("cats")


def test_ready_means_a_table_and_an_instance_for_every_model() -> None:
    registry = ModelRegistry(table(0, cats=[], dogs=[]), {})
    decisions = registry.swap(table(1, cats=["a"], dogs=["b"]))
    for decision in decisions:
        assert isinstance(decision, Dial)
        assert not registry.ready
        registry.model(decision.instance.model).up(decision.instance.id, Hello(1, b""))

    assert registry.ready


def test_a_parked_model_is_ready_and_one_that_lost_its_instances_is_not() -> None:
    """Its requests are answered once it has started; a balancer must not take the router out."""
    registry = ModelRegistry(table(1, cats=[], dogs=[]), {})
    parked = [
        Condition(ConditionKind.PARKED, f"model/{name}", "parked") for name in ("cats", "dogs")
    ]
    registry.readiness = Readiness(tuple(parked[:1]))
    accepted = [registry.accepts(registry.model(name)) for name in ("cats", "dogs")]

    assert (accepted, registry.ready) == ([True, False], False)
    registry.readiness = Readiness(tuple(parked))
    assert registry.ready
    assert registry.readiness.refusal("cats") is None


@pytest.mark.parametrize(
    ("revision", "name", "version", "error"),
    [
        (1, "", "", InvalidArgument),
        (1, "cows", "", NotFound),
        (0, "cows", "", Unavailable),
        (1, "cats", "3", NotFound),
    ],
)
def test_an_unknown_model_and_an_unknown_version_have_different_errors(
    revision: int, name: str, version: str, error: type[Exception]
) -> None:
    registry = ModelRegistry(table(revision, cats=[]), {})

    with pytest.raises(error):
        registry.model(name, version)


@pytest.mark.parametrize("version", ["", "1"])
def test_the_only_version_is_one(version: str) -> None:
    assert ModelRegistry(table(1, cats=[]), {}).model("cats", version).routes.model == "cats"
