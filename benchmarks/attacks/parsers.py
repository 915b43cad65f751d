"""Documents and messages that cost their reader more than their writer."""

from __future__ import annotations

import asyncio
import gzip
import json
import ssl
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import grpc
import httpx
import jwt
import onnx
import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from onnx import TensorProto, helper

from benchmarks.attacks.target import Attack, Target
from inference import grpc_service_pb2 as pb
from inference.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from services.kit.config import Tls
from services.kit.net import split_address
from services.kit.rpc import dial

_TIMES: Final = 4
_TIMEOUT_S: Final = 10.0
_INFER: Final = "/v2/models/digits/infer"
_CHAT: Final = "/v1/chat/completions"
_SLOW: Final = 200
_SLOW_S: Final = 5.0
_TOKENS: Final = 300
_ZEROS: Final = bytes(200 * 2**20)

Body = Callable[[], bytes]


def posted(path: str, body: Body, times: int = _TIMES, **headers: str) -> Attack:
    """Return the attack that posts a document a few times at once; a good answer is none of 5xx."""

    async def attack(target: Target) -> str:
        content = await asyncio.to_thread(body)
        statuses, slowest_s = [], 0.0
        async with _http(target, target.attacker) as client:

            async def post() -> None:
                nonlocal slowest_s
                began_s = time.monotonic()
                reply = await client.post(path, content=content, headers=headers)
                slowest_s = max(slowest_s, time.monotonic() - began_s)
                statuses.append(reply.status_code)

            await asyncio.gather(*(post() for _ in range(times)))
        refused = all(400 <= status < 500 for status in statuses)
        return f"HTTP {statuses[0]} in {slowest_s:.2f} s" if refused else ""

    return attack


def _http(target: Target, tls: Tls) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=target.http, verify=target.context(tls, "http/1.1"), timeout=_TIMEOUT_S
    )


def _tensor(shape: str = "[4]", values: bytes = b"1,2,3,4") -> bytes:
    head = b'{"inputs":[{"name":"image","datatype":"FP32","shape":%b,' % shape.encode()
    return head + b'"data":[%b]}]}' % values


def _data(values: bytes) -> bytes:
    return _tensor("[4]", values)


def documents() -> Iterator[tuple[str, Attack]]:
    """Yield attacks by HTTP."""
    yield (
        "shape of 100,000 integers of 10^17",
        posted(_INFER, lambda: _tensor("[" + ",".join(["1" + "0" * 17] * 100_000) + "]")),
    )
    yield "size of 2^70 in a shape", posted(_INFER, lambda: _tensor(f"[{2**70}]"))
    yield (
        "2 MiB of [] as data",
        posted(_INFER, lambda: _data(b"[]," * 700_000 + b"1")),
    )
    yield (
        "data nested 200,000 deep",
        posted(_INFER, lambda: _data(b"[" * 200_000 + b"]" * 200_000)),
    )
    yield "140,000 inputs", posted(_INFER, lambda: b'{"inputs":[' + b"{}," * 140_000 + b"{}]}")
    yield (
        "190,000 chat messages",
        posted(_CHAT, lambda: b'{"model":"digits","messages":[' + b"{}," * 190_000 + b"{}]}"),
    )
    yield (
        "100,000 parameters",
        posted(
            _INFER,
            lambda: json.dumps(
                {"inputs": [], "parameters": {f"p{i}": i for i in range(100_000)}}
            ).encode(),
        ),
    )
    yield (
        "number of 2 million digits",
        posted(_INFER, lambda: _data(b"9" * 2**21)),
    )
    yield "gzip that is damaged", posted(_INFER, lambda: b"\x1f\x8b" + bytes(500), **_GZIP)
    yield (
        "deflate that is damaged",
        posted(_INFER, lambda: b"\x78\x9c" + b"\xff" * 500, **_DEFLATE),
    )
    yield (
        "gzip of 200 MiB",
        posted(_INFER, lambda: gzip.compress(_ZEROS, 9), 2, **_GZIP),
    )
    yield (
        "deflate of 200 MiB",
        posted(
            _INFER,
            lambda: zlib.compress(_ZEROS, 9),
            2,
            **_DEFLATE,
        ),
    )
    yield (
        "header length of 5,000 digits",
        posted(_INFER, _tensor, **_DIGITS),
    )


_GZIP: Final[dict[str, Any]] = {"Content-Encoding": "gzip"}
_DEFLATE: Final[dict[str, Any]] = {"Content-Encoding": "deflate"}
_DIGITS: Final[dict[str, Any]] = {"Inference-Header-Content-Length": "9" * 5000}


async def slow_bodies(target: Target) -> str:
    """Send 200 bodies by a byte a second."""
    host, port = split_address(target.deployment.router.http_listen)
    context: ssl.SSLContext = target.context(target.attacker, "http/1.1")
    writers = []
    for _ in range(_SLOW):
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
            writer.write(
                f"POST {_INFER} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000\r\n\r\n".encode()
            )
            writers.append(writer)
    ends_s = time.monotonic() + _SLOW_S
    while time.monotonic() < ends_s:
        for writer in writers:
            writer.write(b"{")
        await asyncio.sleep(1)
    for writer in writers:
        writer.transport.abort()
    async with _http(target, target.attacker) as client:
        reply = await client.get("/v2/health/ready")
    return f"{len(writers)} held for {_SLOW_S:g} s, others answered" if reply.is_success else ""


def inferred(make: Callable[[], pb.ModelInferRequest], times: int = _TIMES) -> Attack:
    """Return the attack of a request over gRPC that has too much of something."""

    async def attack(target: Target) -> str:
        request = await asyncio.to_thread(make)
        async with dial(target.router, target.attacker) as channel:
            infer = GRPCInferenceServiceStub(channel).ModelInfer
            began_s = time.monotonic()
            calls = [infer(request, timeout=_TIMEOUT_S) for _ in range(times)]
            codes = [(await call.code()).name for call in calls]
        refused = set(codes) <= {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}
        return f"{codes[0]} in {time.monotonic() - began_s:.2f} s" if refused else ""

    return attack


def _with_parameters() -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="digits")
    for number in range(150_000):
        request.parameters[f"p{number}"].int64_param = number
    return request


def _with_inputs() -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="digits")
    for _ in range(140_000):
        request.inputs.add(name="x")
    return request


def _with_shape() -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="digits")
    request.inputs.add(name="image", datatype="FP32", shape=[2**62] * 100_000)
    return request


async def forged_tokens(target: Target) -> str:
    """Show 300 tokens: of another key, of no algorithm, damaged, and too long."""
    key = ec.generate_private_key(ec.SECP256R1())
    claims = {
        "sub": "victim", "exp": time.time() + 60, "iss": "https://issuer.example",
        "aud": "inference",
    }  # fmt: skip
    forged: tuple[str, ...] = (
        jwt.encode(claims, key, "ES256", headers={"kid": "k"}),
        jwt.encode(claims, "", "none", headers={"kid": "k"}),
        jwt.encode(claims, "x" * 64, "HS256", headers={"kid": "k"}),
        target.token[:-4] + "AAAA",
        "a." * 4000,
    )
    async with dial(target.token_port, target.stranger) as channel:
        infer = GRPCInferenceServiceStub(channel).ModelInfer
        calls = [
            infer(
                pb.ModelInferRequest(model_name="digits"),
                metadata=(("authorization", f"Bearer {forged[number % len(forged)]}"),),
                timeout=_TIMEOUT_S,
            )
            for number in range(_TOKENS)
        ]
        codes = {(await call.code()) for call in calls}
    return "UNAUTHENTICATED" if codes == {grpc.StatusCode.UNAUTHENTICATED} else ""


async def hostile_name(target: Target) -> str:
    """Name an input so that `init` would write a command into the deployment file."""
    folder = target.folder / "hostile"
    folder.mkdir()
    name = "x\u2028    runtime: {kind: external, command: [touch, /tmp/pwned]}\u2028"
    kind = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Identity", [name], ["y"])],
        "g",
        [kind(name, TensorProto.FLOAT, ["n", 4])],
        [kind("y", TensorProto.FLOAT, ["n", 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, folder / "net.onnx")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "init", "--onnx", str(folder / "net.onnx")),
        str(folder / "out"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    written = folder / "out" / "cinquefoil.yaml"
    if not written.exists():
        return "" if b"Traceback" in said else f"refused: {_end(said)}"
    return "" if _has_command(yaml.safe_load(_read(written))) else "written as data"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _end(said: bytes) -> str:
    return " ".join(said.decode(errors="replace").split())[-80:]


def _has_command(document: Any) -> bool:
    if isinstance(document, dict):
        return "command" in document or any(map(_has_command, document.values()))
    return isinstance(document, list) and any(map(_has_command, document))


def messages() -> Iterator[tuple[str, Attack]]:
    """Yield attacks by gRPC, which meet either transport."""
    yield "150,000 parameters over gRPC", inferred(_with_parameters)
    yield "140,000 inputs over gRPC", inferred(_with_inputs)
    yield "shape of 100,000 sizes of 2^62 over gRPC", inferred(_with_shape)
    yield "300 forged tokens", forged_tokens


def others() -> Iterator[tuple[str, Attack]]:
    """Yield attacks that no transport of requests carries."""
    yield from documents()
    yield "200 bodies by a byte a second", slow_bodies
    yield "a command in the name of an ONNX input", hostile_name
