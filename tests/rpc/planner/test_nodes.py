"""Nodes that no file names: they join, are taken out of use, and are forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest

from cinquefoil.planner.v1 import planner_pb2 as pb
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from services.kit import config
from services.kit.net import free_port
from services.kit.rpc import dial
from tests.support.certificates import issued
from tests.support.fake_agent import (
    Agent,
    active,
    deployment,
    endpoints,
    living,
    planner,
    watch,
)
from tests.support.planner.planner_client import connected, refused, violated
from tests.support.waiting import until

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub
    from tests.support.fake_agent import Grid


def open_deployment(folder: Path, grid: Grid, **join: object) -> config.Deployment:
    """Return a deployment whose file names no node."""
    given = {"control": True, "orphan_timeout_s": 6, **join}
    return deployment(folder, grid.port, (), config.Join.model_validate(given))


def agent(name: str, address: str = "127.0.0.1:9000", zone: str = "Z") -> Agent:
    return Agent(name, (f"GPU-{name}",), zone, address=address)


async def nodes(stub: PlannerServiceAsyncStub) -> dict[str, pb.FleetNode]:
    fleet = await stub.GetFleet(pb.GetFleetRequest())
    return {each.node.name: each for each in fleet.nodes}


async def test_a_node_joins_serves_leaves_and_is_forgotten(tmp_path: Path, grid: Grid) -> None:
    """No file is touched; its address is known for as long as it is."""
    settings = open_deployment(tmp_path, grid, forget_after_s=0.2)
    async with planner(settings) as stub:
        async with living(agent("pool-7"), stub):
            plan = (await active(stub, 1)).plan
            known = (await nodes(stub))["pool-7"]

        async def forgotten() -> bool:
            return "pool-7" not in await nodes(stub)

        await until(forgotten)

    assert {segment.node for segment in plan.segments} == {"pool-7"}
    assert known.joined
    assert known.address == "127.0.0.1:9000"


async def test_a_planner_that_starts_again_keeps_the_instances_of_nodes_that_joined(
    tmp_path: Path, grid: Grid
) -> None:
    """Routers are sent to them before their agents are back."""
    settings, worker = open_deployment(tmp_path, grid), agent("pool-7")
    async with planner(settings) as stub, living(worker, stub):
        await watch(stub, lambda seen: len(seen.routing.models[0].instances) > 0)
    async with planner(settings) as stub:
        seen = await watch(stub, lambda _: True)
        assert "pool-7" in await nodes(stub)

    (segment_id,) = worker.segments
    found = {instance.endpoint for instance in seen.routing.models[0].instances}
    assert found == set(endpoints(segment_id, worker.segments[segment_id].processes))


NOT_WELCOME = [
    (agent("other-1"), grpc.StatusCode.PERMISSION_DENIED, "join.names has pool-*"),
    (agent("pool-1", zone="X"), grpc.StatusCode.FAILED_PRECONDITION, "carbon.zones has Z"),
    (agent("pool-1", ""), grpc.StatusCode.INVALID_ARGUMENT, "address: required"),
    (agent("pool-1", "nowhere"), grpc.StatusCode.INVALID_ARGUMENT, "must be host:port"),
    (agent("pool-1", "10.0.0.7:1"), grpc.StatusCode.PERMISSION_DENIED, "beyond this machine"),
    (agent("pool-7", "127.0.0.2:1"), grpc.StatusCode.PERMISSION_DENIED, "127.0.0.1:9000"),
]


async def test_a_node_that_may_not_join_is_refused_in_words(
    tmp_path: Path, grid: Grid, subtests: pytest.Subtests
) -> None:
    """The last one has the name of a node that lives at another address."""
    settings = open_deployment(tmp_path, grid, names=["pool-*"])
    async with planner(settings) as stub, living(agent("pool-7"), stub):
        await connected(stub, "pool-7")
        for joining, code, what in NOT_WELCOME:
            with subtests.test(what):
                async with living(joining, stub) as task:
                    error = await refused(task)
                assert error.code() is code
                assert what in str(error.details())


async def test_a_certificate_is_of_its_node_or_of_all_that_share_it(
    tmp_path: Path, grid: Grid, subtests: pytest.Subtests
) -> None:
    tls = issued(tmp_path, "planner", "operator/ada", "agent/pool-1", "agent/shared")
    settings = open_deployment(tmp_path, grid, identities=["spiffe://cinquefoil/agent/shared"])
    port = free_port()
    listening = settings.planner.model_copy(update={"listen": f"127.0.0.1:{port}"})
    settings = settings.model_copy(update={"tls": tls, "planner": listening})
    async with planner(settings) as operator:
        for bearer, name, joins in (
            ("pool-1", "pool-1", True),
            ("pool-1", "pool-2", False),
            ("shared", "pool-2", True),
        ):
            with subtests.test(f"{bearer} as {name}"):
                async with (
                    dial(f"127.0.0.1:{port}", tls.of("agent", bearer)) as channel,
                    living(agent(name), PlannerServiceStub(channel)) as task,
                ):
                    if joins:
                        await connected(operator, name)
                    else:
                        error = await refused(task)
                        assert error.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_routers_are_never_sent_to_an_address_that_the_agent_does_not_call_from(
    tmp_path: Path, grid: Grid, subtests: pytest.Subtests
) -> None:
    """Nothing is admitted, so no route leads there."""
    settings = open_deployment(tmp_path, grid)
    settings = settings.model_copy(update={"access": config.Access(insecure=True)})
    link_local, unique_local = "[fe80::1]", "[fd00:ec2::254]"
    hosts = ("10.1.2.3", "169.254.169.254", "0.0.0.0", link_local, "224.0.0.1", unique_local)
    async with planner(settings) as stub:
        for host in hosts:
            with subtests.test(host):
                async with living(agent("pool-7", f"{host}:22"), stub) as task:
                    error = await refused(task)
                    known = await nodes(stub)
                assert error.code() == grpc.StatusCode.PERMISSION_DENIED
                assert "join.networks" in (error.details() or "")
                assert not known


async def test_agents_name_addresses_of_the_networks_of_the_deployment_file(
    tmp_path: Path, grid: Grid
) -> None:
    """Of agents behind NAT; what clouds hand out credentials at is in none."""
    settings = open_deployment(tmp_path, grid, networks=["10.1.0.0/16", "169.254.0.0/16"])
    settings = settings.model_copy(update={"access": config.Access(insecure=True)})
    async with planner(settings) as stub:
        async with living(agent("pool-7", "10.1.2.3:8463"), stub):
            await connected(stub, "pool-7")
        for address in ("10.2.0.1:8463", "169.254.169.254:80", "no-such-host.invalid:80"):
            async with living(agent("other", address), stub) as task:
                await refused(task)
        known = await nodes(stub)

    assert set(known) == {"pool-7"}


async def test_a_drained_node_is_left_and_stays_out_over_a_restart(
    tmp_path: Path, grid: Grid
) -> None:
    """The node's segments run elsewhere; a dry run says so before."""
    settings = open_deployment(tmp_path, grid)
    agents = {name: agent(name, f"127.0.0.1:{port}") for name, port in (("a", 9001), ("b", 9002))}
    async with planner(settings) as stub, living(agents["a"], stub), living(agents["b"], stub):
        first = (await active(stub, 1)).plan.segments[0].node
        other = "b" if first == "a" else "a"
        order = pb.CordonNodeRequest(node=first, drain=True, dry_run=True)
        dry = (await stub.CordonNode(order)).outcome.plan
        order.dry_run = False
        await stub.CordonNode(order)
        second = (await active(stub, 2)).plan
        await until(lambda: not agents[first].segments)
    async with planner(settings) as stub:
        known = (await nodes(stub))[first]
        await stub.UncordonNode(pb.UncordonNodeRequest(node=first))
        after = (await nodes(stub))[first]

    assert {segment.node for segment in dry.segments} == {other}
    assert {segment.node for segment in second.segments} == {other}
    assert known.order.drain
    assert not after.HasField("order")


async def test_a_cordon_causes_no_plan_and_the_next_one_leaves_the_node_out(
    tmp_path: Path, grid: Grid
) -> None:
    settings = deployment(tmp_path, grid.port, ("a", "b"))
    async with planner(settings) as stub, living(agent("a"), stub), living(agent("b"), stub):
        first = (await active(stub, 1)).plan.segments[0].node
        await stub.CordonNode(pb.CordonNodeRequest(node=first))
        grid.intensity.publish(900.0)
        second = (await active(stub, 2)).plan

    assert second.reason.startswith("carbon")
    assert first not in {segment.node for segment in second.segments}


async def test_only_a_node_that_joined_and_left_is_forgotten_by_order(
    tmp_path: Path, grid: Grid
) -> None:
    settings = open_deployment(tmp_path, grid).model_copy(
        update={"nodes": {"fixed": config.Node(zone="Z")}}
    )
    async with planner(settings) as stub:
        async with living(agent("pool-7"), stub):
            await connected(stub, "pool-7")
            codes = {}
            for name in ("pool-7", "fixed", "nobody"):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.ForgetNode(pb.ForgetNodeRequest(node=name))
                codes[name] = (caught.value.code(), violated(caught.value))

        async def forgotten() -> bool:
            try:
                await stub.ForgetNode(pb.ForgetNodeRequest(node="pool-7"))
            except grpc.aio.AioRpcError:
                return False
            return True

        await until(forgotten)
        left = set(await nodes(stub))

    precondition = (grpc.StatusCode.FAILED_PRECONDITION, "node")
    assert codes == {
        "pool-7": precondition,
        "fixed": precondition,
        "nobody": (grpc.StatusCode.NOT_FOUND, "node"),
    }
    assert left == {"fixed"}


async def test_no_agent_takes_the_gpu_of_a_node_that_is_away(tmp_path: Path, grid: Grid) -> None:
    """Neither while its agent restarts nor after a restart of the planner; an operator permits."""
    settings = open_deployment(tmp_path, grid)
    thief = Agent("thief", ("GPU-mine",), "Z", address="127.0.0.1:9002")
    mine = Agent("mine", ("GPU-mine",), "Z", address="127.0.0.1:9001")
    async with planner(settings) as stub:
        async with living(mine, stub):
            await connected(stub, "mine")
        async with living(thief, stub) as task:
            error = await refused(task)
    async with planner(settings) as stub:
        async with living(thief, stub) as task:
            again = await refused(task)
        async with living(mine, stub):
            await connected(stub, "mine")

        async def away() -> bool:
            return not (await nodes(stub))["mine"].connected

        await until(away)
        await stub.ForgetNode(pb.ForgetNodeRequest(node="mine"))
        async with living(thief, stub):
            await connected(stub, "thief")

    for each in (error, again):
        assert each.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "GPU-mine is of node mine" in str(each.details())
        assert "cinquefoil nodes forget mine" in str(each.details())


async def test_the_gpus_of_a_node_of_the_file_are_forgotten_and_it_stays(
    tmp_path: Path, grid: Grid
) -> None:
    """A card that moved to another machine of the file is taken there by an operator's order."""
    names = ("node-a", "node-b")
    settings = deployment(tmp_path, grid.port, names)
    async with planner(settings) as stub:
        async with living(Agent("node-a", ("GPU-a",)), stub):
            await connected(stub, "node-a")
            with pytest.raises(grpc.aio.AioRpcError, match="is connected"):
                await stub.ForgetNode(pb.ForgetNodeRequest(node="node-a"))

        async def away() -> bool:
            return not (await nodes(stub))["node-a"].connected

        await until(away)
        await stub.ForgetNode(pb.ForgetNodeRequest(node="node-a"))
        async with living(Agent("node-b", ("GPU-a",)), stub):
            await connected(stub, "node-b")
        with pytest.raises(grpc.aio.AioRpcError, match="has no GPU"):
            await stub.ForgetNode(pb.ForgetNodeRequest(node="node-a"))
        assert set(await nodes(stub)) == set(names)
