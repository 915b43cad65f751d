"""Clients check the role of the server that they reach, not only its name."""

import ast
import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceStub
from services.kit.config import Access as Settings
from services.kit.config import Tls
from services.kit.config.access import ExpectedServer
from services.kit.net import free_port
from services.kit.rpc import Transport, dial
from services.kit.rpc.checked_relay import CheckedRelay
from tests.support.certificates import issued
from tests.support.scripted_service import scripted

SERVICES = Path(__file__).parents[3] / "services"
PRINCIPALS = Settings().principals
CARBON = ExpectedServer("carbon", PRINCIPALS["carbon"])
OTHERS = ("worker/node-a", "router", "agent/node-a", "client/app")


async def nothing(_context: Any) -> list[str]:
    return []


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """Certificates of one authority that all have the same host."""
    return issued(tmp_path_factory.mktemp("pki"), "carbon", "planner", "operator/ada", *OTHERS)


def of(tls: Tls, bearer: str) -> Tls:
    role, _, name = bearer.partition("/")
    return tls.of(role, name)


async def queried(channel: grpc.aio.Channel) -> tuple[grpc.StatusCode, str]:
    call = CarbonServiceStub(channel).ListZones(pb.ListZonesRequest(), timeout=20)
    return await call.code(), await call.details()


@pytest.mark.parametrize("transport", ["own", "grpcio"])
@pytest.mark.parametrize("bearer", ["carbon", *OTHERS])
async def test_a_server_of_another_role_is_refused_by_name(
    tls: Tls, bearer: str, transport: Transport
) -> None:
    """Its certificate is of the same authority and has the host's name."""
    async with (
        scripted(nothing, tls=of(tls, bearer), transport=transport) as (_, _, server),
        dial(f"127.0.0.1:{server.port}", tls.of("planner"), CARBON) as channel,
    ):
        code, details = await queried(channel)

    if bearer == "carbon":
        assert code is grpc.StatusCode.OK
        return
    assert code is grpc.StatusCode.UNAVAILABLE
    assert f"the server is spiffe://cinquefoil/{bearer}, not carbon" in details
    assert "access.roles.carbon permits spiffe://cinquefoil/carbon" in details


async def test_each_connection_is_checked(tls: Tls) -> None:
    """An impostor that takes the address over later gets no call, and its successor gets them."""
    address, called = f"127.0.0.1:{free_port()}", list[str]()

    async def answer(bearer: str, _context: Any) -> list[str]:
        called.append(bearer)
        return []

    async with dial(address, tls.of("planner"), CARBON) as channel:
        for bearer in ("carbon", "router", "planner", "carbon"):
            wanted = "" if bearer == "carbon" else f"the server is spiffe://cinquefoil/{bearer},"
            async with (
                scripted(partial(answer, bearer), tls=of(tls, bearer), address=address),
                asyncio.timeout(45),
            ):
                code, details = await queried(channel)
                while not (wanted in details if wanted else code is grpc.StatusCode.OK):
                    await asyncio.sleep(0.05)
                    code, details = await queried(channel)

    assert called == ["carbon", "carbon"]


async def test_of_several_addresses_the_impostor_is_left_out(tls: Tls) -> None:
    """Calls go to the standby, although the impostor says that it serves."""
    async with (
        scripted(nothing, tls=of(tls, "router")) as (_, _, impostor),
        scripted(nothing, tls=of(tls, "carbon")) as (_, _, standby),
        dial(
            [f"127.0.0.1:{impostor.port}", f"127.0.0.1:{standby.port}"], tls.of("planner"), CARBON
        ) as channel,
    ):
        code, _ = await queried(channel)

    assert code is grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("name", "fault"),
    [("agent/node-0", ""), ("agent/node-1", "not agent of node node-0"), ("agent/shared", "")],
)
def test_an_agent_must_be_of_its_node(name: str, fault: str) -> None:
    """An agent shows its own node's identity, or one that agents share."""
    lent = ("spiffe://cinquefoil/agent/shared",)
    expected = ExpectedServer("agent", PRINCIPALS["agent"], "node-0", lent)
    found = expected.fault((f"spiffe://cinquefoil/{name}",))
    assert fault in found
    assert bool(fault) == bool(found)


async def test_where_nothing_listens_calls_say_so(tls: Tls) -> None:
    """The reason is the system's, as without a relay."""
    async with dial(f"127.0.0.1:{free_port()}", tls.of("planner"), CARBON) as channel:
        code, details = await queried(channel)
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "Connection refused" in details


async def test_no_other_process_uses_the_identity_of_this_one(tls: Tls) -> None:
    """The relay ends the connection of another process before it dials."""
    connect = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(10); "
        "s.connect(chr(0) + sys.argv[1]); print(s.recv(1))"
    )
    async with scripted(nothing, tls=of(tls, "carbon")) as (_, _, server):
        relay = CheckedRelay(f"127.0.0.1:{server.port}", tls.of("planner"), CARBON)
        await relay.start()
        name = relay.target.partition(":")[2]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", connect, name, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(process.communicate(), 45)
        await relay.close()
    assert output.strip() == b"b''"


def test_every_dial_says_which_role_it_expects() -> None:
    """Only an external server, which has none of our roles, is dialled without."""
    without = []
    for file in SERVICES.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = getattr(node.func, "id", "")
            first = getattr(node.args[0], "id", "") if node.args else ""
            if called == "dial" or (called == "partial" and first == "dial"):
                named = {each.arg for each in node.keywords}
                if len(node.args) < 3 and "expected" not in named:
                    without.append(file.relative_to(SERVICES).as_posix())
    assert without == ["gpuagent/worker/external_model.py"]
