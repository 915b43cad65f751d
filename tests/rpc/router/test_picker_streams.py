"""Streams to the endpoint picker that no Envoy sends: each has one request, or ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import grpc
import pytest
from aiohttp.test_utils import TestServer

from envoy_ext_proc import ext_proc_pb2 as pb
from envoy_ext_proc.ext_proc_pb2_grpc import ExternalProcessorStub
from services.kit.net import free_port
from tests.support.openai_server import Counting
from tests.support.router.router_client import status
from tests.support.router.router_service import World, running
from tests.support.waiting import until

SLOTS = 2


def head(*, ended: bool = False) -> pb.ProcessingRequest:
    """Return the head of a request, whose body comes BUFFERED."""
    made = pb.ProcessingRequest()
    made.protocol_config.request_body_mode = pb.BUFFERED
    made.request_headers.headers.headers.add(key=":path", raw_value=b"/v1/completions")
    made.request_headers.end_of_stream = ended
    return made


def body(*, ended: bool = True) -> pb.ProcessingRequest:
    prompt = b'{"model": "chat", "prompt": "1 2"}'
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=prompt, end_of_stream=ended))


def answer(status: bytes) -> pb.ProcessingRequest:
    made = pb.ProcessingRequest()
    made.response_headers.headers.headers.add(key=":status", raw_value=status)
    return made


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A router that is the picker of one server with two slots."""
    server = TestServer(Counting(tmp_path / "fault", "").app())
    await server.start_server()
    address = f"127.0.0.1:{server.port}"
    pool = {"variant": "fp16", "gpu": "a100-40gb", "zone": "US-CAL", "addresses": [address]}
    variant = {
        "accuracy": 0.8,
        "profile": {"kind": "language", "parameters_b": 8},
        "runtime": {"kind": "openai", "address": address},
    }
    model = {
        "slo": {"latency_s": 30},
        "demand_rps": 1.0,
        "accuracy_unit": "win rate",
        "servers": {"here": {**pool, "slots": SLOTS}},
        "variants": {"fp16": variant},
    }
    listen = f"127.0.0.1:{free_port()}"
    async with running(picker_listen=listen, sections={"models": {"chat": model}}) as world:

        async def connected() -> bool:
            return [each.connected for each in (await status(world)).instances] == [True]

        await until(connected)
        yield world
    await server.close()


async def said(world: World, messages: Iterable[pb.ProcessingRequest]) -> Sequence[str | int]:
    """Return the kinds of the picker's answers, of an own answer to the client its status."""
    assert world.made is not None
    async with grpc.aio.insecure_channel(world.made.router.picker_listen) as channel:
        call = ExternalProcessorStub(channel).Process(iter(messages), timeout=30)
        return [
            each.immediate_response.status.code or str(each.WhichOneof("response"))
            async for each in call
        ]


async def test_a_stream_has_one_request_and_gives_its_credit_back(world: World) -> None:
    """A second request would take a slot for good: two such streams ended the server."""
    hostile = {
        "two heads": (head(ended=True), head(ended=True)),
        "a body twice": (head(), body(), body()),
        "a body without a head": (body(),),
        "a body after its end": (head(), body(), body(ended=False)),
    }
    found = {name: await said(world, sent) for name, sent in hostile.items() for _ in range(SLOTS)}

    async def free() -> bool:
        return [each.in_flight for each in (await status(world)).instances] == [0]

    await until(free)
    assert {name: answers[-1] for name, answers in found.items()} == dict.fromkeys(hostile, 400)
    for status_of_server in (b"200", b"9" * 5000, "\u0662\u0660\u0660".encode()):
        passed = await said(world, (head(), body(), answer(status_of_server)))
        assert passed == ["request_headers", "request_body", "response_headers"]
    await until(free)
