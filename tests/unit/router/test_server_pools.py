"""Pools of servers beside the planner's table, and how the deployment file describes them."""

from typing import Any

import pytest

from services.kit.config import Model
from services.router.core.model import Instance, ModelRoutes, RoutingTable
from services.router.core.server_pools import ServerPools

POOL = {"variant": "fp16", "gpu": "a100-40gb", "zone": "DE", "addresses": ["10.0.0.1:8000"]}


def model(**changes: Any) -> Model:
    return Model.model_validate(
        {
            "slo": {"latency_s": 10},
            "demand_rps": 1,
            "variants": {
                "fp16": {
                    "accuracy": 0.8,
                    "profile": {"kind": "language", "parameters_b": 8},
                    "runtime": {
                        "kind": "openai",
                        "address": "127.0.0.1:8000",
                        "model_name": "Qwen/Qwen3-8B",
                    },
                }
            },
            "servers": {"here": POOL | changes},
        }
    )


def test_servers_replace_the_instances_of_their_model_and_no_other() -> None:
    pools = ServerPools({"chat": model()})
    worker = Instance("h:1", "s1", "digits", "v", 0.9, 1.0, 4)
    planned = Instance("h:2", "s2", "chat", "fp16", 0.8, 1.0, 4)
    table = RoutingTable(
        7,
        3,
        (
            ModelRoutes("digits", 1.0, 95.0, "shares", (worker,)),
            ModelRoutes("chat", 1.0, 95.0, "prefix", (planned,)),
        ),
    )

    assert pools.found("chat", "here", ["10.0.0.2:8000", "10.0.0.1:8000"])
    assert not pools.found("chat", "here", ["10.0.0.1:8000", "10.0.0.2:8000"])
    digits, chat = pools.merged(table).models

    assert digits.instances == (worker,)
    assert chat.instance_choice == "prefix"
    assert [each.endpoint for each in chat.instances] == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert all(
        pools.owns(each.id) and pools.pool_name_of(each) == "here" for each in chat.instances
    )
    assert not pools.owns(worker.id)


def test_a_model_has_its_servers_before_the_planner_has_sent_a_table() -> None:
    pools = ServerPools({"chat": model(), "digits": model().model_copy(update={"servers": {}})})
    pools.found("chat", "here", ["10.0.0.1:8000"])

    (chat,) = pools.merged(RoutingTable(0, 0, ())).models

    assert (chat.model, len(chat.instances)) == ("chat", 1)
    assert pools.named("Qwen/Qwen3-8B") == "chat"
    assert pools.named("digits") is None


def test_other_models_take_over_while_pools_that_stay_keep_their_addresses() -> None:
    pools = ServerPools({"chat": model(), "code": model()})
    pools.found("chat", "here", ["10.0.0.1:8000"])
    pools.found("code", "here", ["10.0.0.2:8000"])

    pools.use({"chat": model(slots=3)})
    (chat,) = pools.merged(RoutingTable(0, 0, ())).models

    assert [(each.endpoint, each.credits) for each in chat.instances] == [("10.0.0.1:8000", 3)]
    assert pools.looked
    assert pools.named("code") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variant": "other"}, "servers.here.variant: no variant 'other'; there are fp16"),
        ({"gpu": "h200"}, "gpu: no GPU type 'h200'; there are"),
        ({"slice": "9g"}, "slice: must be one of"),
        ({"selector": {"app": "x"}}, "give one of addresses, inference_pool, selector, service"),
        ({"addresses": [], "selector": {"app": "x"}}, "port: required with selector"),
        ({"namespace": "a"}, "namespace: only with"),
        ({"replicas_min": 11}, "replicas_min: at most replicas_max, 10"),
        ({"addresses": [], "selector": {"a b": "x"}, "port": 1}, "selector"),
    ],
)
def test_what_a_pool_cannot_be_is_said(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model(**changes)


def test_requests_behind_a_gateway_are_not_hedged() -> None:
    made = model().model_dump() | {"hedge_after_s": 1.0}
    with pytest.raises(ValueError, match="hedge_after_s: a request that a gateway has sent"):
        Model.model_validate(made)
