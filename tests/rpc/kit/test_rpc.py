"""Features that every service gets from the kit, over real connections."""

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_status import rpc_status
from prometheus_client import REGISTRY

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from services.kit import errors
from services.kit.net import free_port
from services.kit.rpc import Access, Limits, dial, serving
from services.kit.rpc.health_list_messages import HealthListResponse
from services.kit.telemetry import tracing
from tests.support.certificates import issued
from tests.support.scripted_service import ADDRESS, NAME, scripted

OPENSSL = shutil.which("openssl")
GRPCURL = shutil.which("grpcurl", path=str(Path(sys.executable).parent))
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADER = f"00-{TRACE}-00f067aa0ba902b7-01"
UNREADABLE = b"\xff\xff\xff\xff"

Health = health_pb2.HealthCheckResponse


async def nothing(_context: Any) -> list[str]:
    return []


def raw(make: Any, method: str) -> Any:
    """Return a method that takes and gives bytes, as no stub does."""
    return make(method)


def details(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """Return the google.rpc details of an error by message name."""
    status = rpc_status.from_call(cast(grpc.Call, error))
    assert status is not None
    found = {}
    for packed in status.details:
        kind = packed.TypeName().rpartition(".")[2]
        found[kind] = getattr(error_details_pb2, kind)()
        packed.Unpack(found[kind])
    return found


# ---- errors ------------------------------------------------------------------------------------


KINDS = [
    kind for kind in errors.ServiceError.__subclasses__() if kind.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.status)
@pytest.mark.parametrize("method", ["ListZones", "Watch"])
async def test_every_error_becomes_its_status_with_details(
    kind: type[errors.ServiceError], method: str
) -> None:
    """Code, message, reason, field and retry time arrive, from unary and streaming methods."""

    async def fail(_context: Any) -> list[str]:
        raise kind("zone is wrong", reason="WRONG_ZONE", field="zone", retry_after_s=1.5)

    async with scripted(fail) as (stub, _, _):
        call = stub.ListZones if method == "ListZones" else lambda r: anext(aiter(stub.Watch(r)))
        request: Any = getattr(pb, f"{method}Request")()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(request)

    assert caught.value.code() is grpc.StatusCode[kind.status]
    assert caught.value.details() == "zone is wrong"
    found = details(caught.value)
    assert (found["ErrorInfo"].reason, found["ErrorInfo"].domain) == ("WRONG_ZONE", "cinquefoil")
    violations = found["BadRequest"].field_violations
    assert [(item.field, item.description) for item in violations] == [("zone", "zone is wrong")]
    assert found["RetryInfo"].retry_delay.ToTimedelta().total_seconds() == 1.5


async def test_an_error_without_field_or_retry_says_only_its_reason() -> None:
    async def fail(_context: Any) -> list[str]:
        raise errors.Unavailable("not yet")

    async with scripted(fail) as (stub, _, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListZones(pb.ListZonesRequest())

    assert list(details(caught.value)) == ["ErrorInfo"]
    assert details(caught.value)["ErrorInfo"].reason == "UNAVAILABLE"


@pytest.mark.parametrize("method", ["ListZones", "Watch"])
async def test_a_bug_is_internal_and_reveals_nothing_to_the_caller(method: str) -> None:
    async def fail(_context: Any) -> list[str]:
        raise KeyError("password=hunter2")

    async with scripted(fail) as (stub, _, _):
        call = stub.ListZones if method == "ListZones" else lambda r: anext(aiter(stub.Watch(r)))
        request: Any = getattr(pb, f"{method}Request")()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(request)

    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert caught.value.details() == "internal error"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("method", ["ListZones", "Watch"])
async def test_bytes_that_are_not_a_message_are_an_invalid_argument(method: str) -> None:
    """Without the guard, grpc answers UNKNOWN; the next call on the connection works."""
    async with scripted(nothing) as (stub, channel, _):
        make = channel.unary_unary if method == "ListZones" else channel.unary_stream
        call = raw(make, f"/{NAME}/{method}")(UNREADABLE)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await (call if method == "ListZones" else anext(aiter(call)))

        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "not a valid protobuf message" in str(caught.value.details())
        await stub.ListZones(pb.ListZonesRequest())


async def test_unreadable_bytes_inside_a_stream_are_an_invalid_argument() -> None:
    """Server reflection stands for the methods that take streams."""
    async with scripted(nothing) as (_, channel, _):
        name = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        call = raw(channel.stream_stream, name)(iter([UNREADABLE]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()

    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_unknown_method_is_unimplemented() -> None:
    async with scripted(nothing) as (_, channel, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw(channel.unary_unary, f"/{NAME}/Guess")(b"")

    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_an_oversized_request_is_refused_with_the_limit() -> None:
    async with scripted(nothing, limits=Limits(message_bytes=1024)) as (stub, _, _):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.GetIntensity(pb.GetIntensityRequest(zone="x" * 2000))
        await stub.GetIntensity(pb.GetIntensityRequest(zone="x" * 1000))

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max (2003 vs. 1024)" in str(caught.value.details())


async def test_calls_are_counted_by_method_and_status() -> None:
    async def fail(_context: Any) -> list[str]:
        raise errors.NotFound("nowhere")

    labels = {"method": f"/{NAME}/ListZones", "status": "NOT_FOUND"}

    def counted() -> float:
        return REGISTRY.get_sample_value("cinquefoil_rpc_server_calls_total", labels) or 0.0

    before = counted()
    async with scripted(fail) as (stub, _, _):
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.ListZones(pb.ListZonesRequest())

    assert counted() == before + 1


# ---- context that travels ----------------------------------------------------------------------


async def test_a_trace_goes_on_through_every_service_of_a_chain() -> None:
    """Front calls back through `dial`; no service records, so the caller is the parent of all."""
    seen: list[str] = []

    async def back(_context: Any) -> list[str]:
        seen.append(tracing.traceparent.get())
        return []

    async with scripted(back) as (behind, _, _):

        async def front(context: Any) -> list[str]:
            seen.append(tracing.traceparent.get())
            await behind.ListZones(pb.ListZonesRequest())
            _ = [message async for message in behind.Watch(pb.WatchRequest())]
            return []

        async with scripted(front) as (stub, _, _):
            await stub.ListZones(pb.ListZonesRequest(), metadata=(("traceparent", HEADER),))

    assert seen == [HEADER] * 3


async def test_without_a_trace_no_header_is_sent() -> None:
    """Other metadata passes untouched, with a trace and without."""
    seen: list[dict[str, str]] = []

    async def keep(context: Any) -> list[str]:
        seen.append({key: str(value) for key, value in context.invocation_metadata()})
        return []

    async with scripted(keep) as (stub, _, _):
        await stub.ListZones(pb.ListZonesRequest(), metadata=(("x-slo-ttft-ms", "50"),))
        tracing.traceparent.set(HEADER)
        await stub.ListZones(pb.ListZonesRequest(), metadata=(("x-slo-ttft-ms", "50"),))

    assert [metadata["x-slo-ttft-ms"] for metadata in seen] == ["50", "50"]
    assert ["traceparent" in metadata for metadata in seen] == [False, True]


# ---- health and reflection ---------------------------------------------------------------------


def health_of(channel: grpc.aio.Channel) -> Any:
    return health_pb2_grpc.HealthStub(channel)


async def test_health_answers_check_list_and_watch_for_each_service() -> None:
    async with scripted(nothing, ready=False) as (_, channel, server):
        health = health_of(channel)
        watch = aiter(health.Watch(health_pb2.HealthCheckRequest(service=NAME)))
        assert (await anext(watch)).status == Health.NOT_SERVING

        await server.set_ready(ready=True)

        assert (await anext(watch)).status == Health.SERVING
        for name in ("", NAME):
            reply = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert reply.status == Health.SERVING
        listed = HealthListResponse.FromString(
            await raw(channel.unary_unary, "/grpc.health.v1.Health/List")(b"")
        )
        assert {name: item.status for name, item in listed.statuses.items()} == dict.fromkeys(
            ("", NAME, "grpc.health.v1.Health", "liveness", "readiness"), Health.SERVING
        )


async def test_probes_need_no_certificate_and_reach_nothing_but_the_health(
    tmp_path: Path,
) -> None:
    """Liveness holds while the service waits for others and while it drains; readiness does not."""
    tls, port = issued(tmp_path, "carbon"), free_port()
    serve = serving(
        "127.0.0.1:0",
        lambda _server: None,
        (NAME,),
        tls=tls.of("carbon"),
        access=Access({}),
        ready=False,
        probes=f"127.0.0.1:{port}",
    )
    async with serve as server, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

        async def status(service: str) -> int:
            request = health_pb2.HealthCheckRequest(service=service)
            found: int = (await health_of(channel).Check(request)).status
            return found

        waiting = [await status(name) for name in ("liveness", "readiness", "")]
        await server.set_ready(ready=True)
        well = [await status(name) for name in ("liveness", "readiness", "")]
        server.health.drain()
        draining = [await status(name) for name in ("liveness", "readiness", "")]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw(channel.unary_unary, f"/{NAME}/ListZones")(b"")

    assert waiting == draining == [Health.SERVING, Health.NOT_SERVING, Health.NOT_SERVING]
    assert well == [Health.SERVING] * 3
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_health_of_an_unknown_service_is_not_found_and_may_be_watched() -> None:
    """By the protocol Check fails, and Watch waits for the service to appear."""
    async with scripted(nothing) as (_, channel, _):
        health, request = health_of(channel), health_pb2.HealthCheckRequest(service="x.Y")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(request)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert (await anext(aiter(health.Watch(request)))).status == Health.SERVICE_UNKNOWN


async def test_a_watcher_that_leaves_takes_no_other_with_it() -> None:
    """The library's own servicer forgets the one that stays."""
    async with scripted(nothing) as (_, channel, server):
        request = health_pb2.HealthCheckRequest()
        leaver, stayer = (health_of(channel).Watch(request) for _ in range(2))
        for watch in (leaver, stayer):
            await anext(aiter(watch))
        leaver.cancel()
        await asyncio.sleep(0.05)
        await server.set_ready(ready=False)

        assert (await anext(aiter(stayer))).status == Health.NOT_SERVING


async def test_a_drain_says_not_serving_and_does_not_wait_for_those_who_watch() -> None:
    """With a minute of grace the block ends at once: health watches end by themselves."""
    async with asyncio.timeout(45):
        async with serving(ADDRESS, lambda _: None, (NAME,), grace_s=60) as server:
            channel = dial(f"127.0.0.1:{server.port}")
            watch = health_of(channel).Watch(health_pb2.HealthCheckRequest(service=NAME))
            assert (await anext(aiter(watch))).status == Health.SERVING
        assert [reply.status async for reply in watch] == [Health.NOT_SERVING]
        await channel.close()


async def grpcurl(*arguments: str) -> tuple[int, str]:
    """Return exit status and output of a foreign client, written in Go."""
    assert GRPCURL is not None
    process = await asyncio.create_subprocess_exec(
        GRPCURL, "-plaintext", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    return process.returncode or 0, output.decode()


@pytest.mark.skipif(GRPCURL is None, reason="grpcurl is not beside this Python")
async def test_grpcurl_lists_describes_and_calls_by_reflection() -> None:
    """No .proto file at hand: names, fields, answers and error details all come from the server."""

    async def fail(_context: Any) -> list[str]:
        raise errors.NotFound("no zones", reason="NO_ZONES")

    async with scripted(fail) as (_, _, server):
        address = f"127.0.0.1:{server.port}"
        _, listed = await grpcurl(address, "list")
        _, described = await grpcurl(address, "describe", NAME)
        _, answered = await grpcurl("-d", '{"zone": "Z"}', address, f"{NAME}/GetIntensity")
        status, failed = await grpcurl(address, f"{NAME}/ListZones")
        _, healthy = await grpcurl(address, "grpc.health.v1.Health/Check")

    assert set(listed.split()) == {
        NAME, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection",
    }  # fmt: skip
    assert "returns ( stream .cinquefoil.carbon.v1.WatchResponse )" in described
    assert json.loads(answered) == {"intensity": {"zone": "Z"}}
    assert status != 0
    assert "NotFound" in failed
    assert "NO_ZONES" in failed
    assert json.loads(healthy) == {"status": "SERVING"}


async def test_connections_beyond_the_limit_are_closed_and_silent_ones_end() -> None:
    """500 silent connections were once held for as long as their peer liked."""
    limits = Limits(connections=4, handshake_s=1)
    async with scripted(nothing, limits=limits) as (_, _, server):
        opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(8)]
        try:
            async with asyncio.timeout(45):
                ends = await asyncio.gather(*(reader.read() for reader, _ in opened))
        finally:
            for _, writer in opened:
                writer.close()

    assert sum(not said for said in ends) == 4, "closed before the server said anything"


async def test_calls_beyond_the_limit_are_refused_at_once() -> None:
    release = asyncio.Event()

    async def wait(_context: Any) -> list[str]:
        await release.wait()
        return []

    async with scripted(wait, limits=Limits(calls=2)) as (stub, _, _):
        calls = [stub.ListZones(pb.ListZonesRequest(), timeout=20) for _ in range(3)]
        first = await next(asyncio.as_completed([call.code() for call in calls]))
        release.set()
        codes = [(await call.code()).name for call in calls]

    assert first.name == "RESOURCE_EXHAUSTED"
    assert sorted(codes) == ["OK", "OK", "RESOURCE_EXHAUSTED"]
