"""Every parser of what others send, as a function of bytes: for properties, and for a fuzzer.

    make fuzz BORDER=join SECONDS=60

A border takes any bytes: it reads them, or refuses them with an error of its own. Every other
exception would end a stream with INTERNAL, or a service.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
import jwt
import onnx
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message import DecodeError, Message
from pydantic import TypeAdapter

from cinquefoil.batch.v1 import batch_pb2
from cinquefoil.gpuagent.v1 import inventory_pb2, steps_pb2, worker_pb2
from cinquefoil.gpuagent.v1.records import Placement, SegmentSpec
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.records import WhatIf
from inference import grpc_service_pb2
from services.batch.core import lines
from services.carbon.core.mqtt_payload import sample_of
from services.carbon.core.sources.feed import Feed, SourceFailed
from services.carbon.sources.csv_trace import read_trace
from services.carbon.sources.live.factory import provider
from services.cli.init.triton_repository import read_repository
from services.gpuagent.core.transaction_rules import PriorSlice, PriorState
from services.gpuagent.planner_link import convert as agent_convert
from services.gpuagent.state_store import Store
from services.gpuagent.supervision.journal import Journal
from services.gpuagent.supervision.processes import last_words
from services.gpuagent.worker import tensor_messages
from services.gpuagent.worker.generative import api_requests as worker_api_requests
from services.gpuagent.worker.generative import server_load
from services.gpuagent.worker.generative.api_requests import ApiRequest, Passage
from services.gpuagent.worker.generative.server_answers import Progress, ServerAnswers
from services.gpuagent.worker.generative.server_listing import served_model
from services.gpuagent.worker.onnx_engine import Signature, TensorSpec
from services.kit import api_requests, config
from services.kit.clock import RealClock
from services.kit.config import OpenAiRuntime, Tokens, carbon_sources, loader
from services.kit.config.loader import ConfigError
from services.kit.errors import ServiceError
from services.kit.h2.hpack import HeaderBlocks, HpackError
from services.kit.h2.messages import Compressed, MessageError, MessageReader
from services.kit.hardware.boards import DriverReading, identify
from services.kit.json_bounds import parsed_answer
from services.kit.mqtt.payload import Message as Payload
from services.kit.mqtt.payload import Refused
from services.kit.operators.onnx_reader import load as load_onnx
from services.kit.rpc import Caller
from services.kit.rpc.record_mapping import from_message
from services.kit.server_metrics.figures import load_of
from services.planner.adapters.agent_sessions import AgentSessions
from services.planner.adapters.price_sources import document_prices
from services.planner.adapters.router_sessions import RouterSession, RouterSessions
from services.planner.adapters.wire.convert import load_from
from services.planner.adapters.wire.paging import read_token, write_token
from services.planner.change_event import ChangeEvent
from services.planner.core.accounting.accountant import Accountant
from services.planner.core.accounting.counters import EnergyCounters
from services.planner.core.accounting.site import Site
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.fleet import Fleet
from services.planner.core.forecast.demand import ConfiguredLoad, Demand
from services.planner.core.service_level import ServiceLevel, ServiceTarget
from services.router.adapters.tokens import TokenVerifier
from services.router.core.answer_reader import AnswerReader
from services.router.core.wire import prompt_of, read_head
from services.router.edge import documents, generate, openai_messages, predict, tensor_json
from services.router.edge.openai_messages import Completion
from tests.support.carbon.provider_answers import CASES, NOW
from tests.support.fake_agent import Agent

SPEC: Final = SegmentSpec("s-1", "digits", "small", 8, 2, "GPU-1", Placement("1g.5gb", 3))


@dataclass(frozen=True, slots=True)
class Border:
    """One parser.

    Attributes:
        read: Reads bytes.
        seeds: Inputs that the parser accepts.
        refuses: Errors by which the parser refuses.
        units: Pieces that may come any number of times.
        cpu_s_per_byte: Processor time that a byte may take, s, beyond a fixed part.
        memory_per_byte: Bytes that a byte may take, beyond a fixed part.
    """

    read: Callable[[bytes], object]
    seeds: Sequence[bytes]
    refuses: tuple[type[Exception], ...] = (ServiceError,)
    units: Sequence[bytes] = ()
    cpu_s_per_byte: float = 40e-9
    memory_per_byte: float = 8.0

    def __call__(self, data: bytes) -> None:
        """Read bytes; raise only what is a bug."""
        with suppress(*self.refuses):
            self.read(data)


def parsed(kind: type[Message], read: Callable[[Any], object], data: bytes) -> None:
    """Read a message; what is none does not get past gRPC."""
    try:
        message = kind.FromString(data)
    except DecodeError:
        return
    read(message)


# ---- planner -----------------------------------------------------------------------------------


def join(message: planner_pb2.JoinRequest) -> None:
    """Join an agent with a message, report it again, and book its energy."""
    accountant = Accountant(lambda node: Site(node, "Z", 1.2, 100.0))

    def account(node: str, energy: Mapping[str, EnergyCounters]) -> None:
        for now_s in (0.0, 1.0):
            accountant.book(node, accountant.bounded(node, energy, now_s)[0])

    nodes = {"node-a": config.Node(zone="Z", control=True)}
    sessions = AgentSessions(_cluster(nodes), account)
    session = sessions.join(message, Caller(), "here")
    sessions.take(session, message)
    sessions.book()
    json.dumps([each.energy_j for each in accountant.page().entries.values()], allow_nan=False)


def _cluster(nodes: Mapping[str, config.Node]) -> ClusterState:
    return ClusterState(
        RealClock(),
        ChangeEvent(),
        (),
        Fleet(nodes, 0.0),
        Demand({"digits": ConfiguredLoad(1.0, 1.0)}, now_s=lambda: 1000.5),
        ServiceLevel({"digits": ServiceTarget(0.05, {"small": 0.9})}),
        config.Objective(),
        "exact",
    )


def report_load(message: planner_pb2.ReportLoadRequest) -> None:
    """Report a message of a router twice."""
    state = _cluster({})
    routers, session = RouterSessions(state), RouterSession()
    for _ in range(2):
        routers.report(session, load_from(message, {"digits": 95.0}))
    json.dumps([routers.latency_s(), state.demand_rps()], allow_nan=False)


def _join_seeds() -> list[bytes]:
    agent = Agent("node-a", ("GPU-1",), slices={"GPU-1": {SPEC.placement}})
    wire = inventory_pb2.SegmentSpec(
        segment_id="s-1", model="digits", variant="small", batch_size=8, processes=1,
        gpu_uuid="GPU-1", placement=inventory_pb2.Placement(profile="1g.5gb", start=3),
    )  # fmt: skip
    agent.segments["s-1"] = wire
    energy = inventory_pb2.GpuEnergy(gpu_uuid="GPU-1", total_j=5.0, idle_j=1.0, method="counter")
    energy.segments.add(segment_id="s-1", model="digits", active_j=2.0, requests=7, busy_s=0.5)
    energy.since.FromSeconds(1_700_000_000)
    drifts = planner_pb2.ProfileDrifts()
    drifts.drifts.add(model="digits", variant="small", latency_ratio=1.5)
    node = agent.report()
    messages = (
        planner_pb2.JoinRequest(node=node),
        planner_pb2.JoinRequest(node=node, energy=[energy], drifts=drifts),
        planner_pb2.JoinRequest(node=node, step_result=steps_pb2.StepResult(step_id="1", ok=True)),
    )
    return [message.SerializeToString() for message in messages]


def _load_seed() -> bytes:
    message = planner_pb2.ReportLoadRequest(router_id="r-1", routing_revision=7)
    message.window.FromSeconds(1)
    load = message.models.add(model="digits", arrivals=9, answered=8, late=1, input_tokens=5)
    load.latency_s["95"] = 0.1
    load.answered_by_variant["small"] = 8
    return message.SerializeToString()


def _what_if() -> bytes:
    message = planner_pb2.WhatIf(carbon_weight=0.5, strategy="exact", without_gpus=["GPU-1"])
    message.demand_rps["digits"] = 5.0
    message.added_gpus.add(type="a30", node="node-a", count=2)
    return message.SerializeToString()


def _text(read: Callable[[str], object], data: bytes) -> None:
    read(data.decode(errors="replace"))


# ---- agent and worker --------------------------------------------------------------------------


def _step_seeds() -> list[bytes]:
    step = steps_pb2.Step(step_id="1")
    step.start_segment.spec.CopyFrom(
        inventory_pb2.SegmentSpec(
            segment_id="s-1", model="m", variant="v", batch_size=1, processes=1, gpu_uuid="GPU-1",
            placement=inventory_pb2.Placement(profile="1g.5gb"),
        )
    )  # fmt: skip
    stop = steps_pb2.Step(step_id="2")
    stop.stop_segment.segment_id = "s-1"
    stop.stop_segment.grace.FromSeconds(5)
    return [step.SerializeToString(), stop.SerializeToString()]


def in_file(read: Callable[[Path], object], data: bytes) -> None:
    """Read bytes from a file."""
    with TemporaryDirectory(prefix="border-") as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        read(path)


def written(write: Callable[[Path], object]) -> bytes:
    """Return what is written to a file."""
    with TemporaryDirectory(prefix="border-") as folder:
        write(Path(folder) / "file")
        return (Path(folder) / "file").read_bytes()


PRIOR: Final = PriorState(
    (PriorSlice("GPU-1", SPEC.placement, existed=True),),
    {"s-1": SPEC, "s-2": None},
    {"GPU-1": 900},
    {"GPU-1": True},
)


# ---- a language model's server, and what stands before it --------------------------------------

_SERVER: Final = ServerAnswers("the server")
_PASSED: Final = ApiRequest("/v1/chat/completions", {"stream": True}, 100, "", b"", id="1")


def server_events(data: bytes) -> None:
    """Follow a stream of events, and pass it on."""

    async def lines() -> AsyncIterator[bytes]:
        for line in data.splitlines(keepends=True):
            if len(line) > 2 * 2**20:
                raise ValueError("longer than aiohttp reads")
            yield line

    async def follow() -> None:
        for passes in (False, True):
            progress = Progress(_SERVER, "the server", 100)
            passage = Passage(_PASSED, progress)
            async for event in _SERVER.events(lines()):
                piece = passage.take(event) if passes else _shown(progress, event.chunk)
                _PASSED.answer(piece, finish_reason=progress.reason)
                _possible(progress)
            passage.rest()

    asyncio.run(follow())


def _shown(progress: Progress, chunk: Any) -> bytes:
    return b"" if chunk is None else progress.take(chunk)[1].encode(errors="replace")


def _possible(progress: Progress) -> None:
    step = progress.step(b"")
    worker_pb2.Receipt(input_tokens=step.input_tokens, output_tokens=step.output_tokens)
    assert 0 <= step.computed_tokens <= step.input_tokens


def server_answer(data: bytes) -> None:
    """Read an answer that came at once, as `OpenAiModel` does."""
    progress = Progress(_SERVER, "the server", 100)
    progress.whole(parsed_answer(data), len(data))
    _PASSED.answer(data[:9], finish_reason=progress.reason)
    _possible(progress)


def server_refusal(data: bytes) -> None:
    """Make errors of a body of 64 KiB."""
    for status in (200, 302, 400, 429, 500):
        headers = {"Retry-After": data[:40].decode("latin-1"), "Location": "http://a/b"}
        error = _SERVER.refusal(status, headers, data[: 2**16])
        assert len(error.message) < 2**13


def server_metrics(data: bytes) -> None:
    """Read metrics, and report them as a worker does."""
    if (shared := load_of(data)) is not None:  # as a picker reads it: in bounds, nothing refused
        assert 0 <= shared.requests < math.inf
    load = server_load.parse(data.decode(errors="replace"))
    assert 0 <= load.kv_cache_ratio <= 1
    worker_pb2.Hello(credits=load.waiting, kv_tokens_per_credit=load.kv_tokens)


_CHUNK: Final = (
    b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}],'
    b'"usage":{"prompt_tokens":5,"completion_tokens":1,"prompt_tokens_details":'
    b'{"cached_tokens":2}},"prompt_progress":{"processed":5,"cache":1}}\n\n'
)
_ANSWER: Final = (
    b'{"id":"1","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],'
    b'"status":"completed","usage":{"prompt_tokens":5,"completion_tokens":1}}'
)
_METRICS: Final = (
    b'vllm:num_requests_waiting{engine="0"} 3\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'
    b'vllm:cache_config_info{num_gpu_blocks="100",block_size="16"} 1\n'
)


# ---- batches -----------------------------------------------------------------------------------

_INFER_PATH: Final = "/v2/models/digits/infer"


def batch_answer(data: bytes) -> None:
    """Write the line of a router's answer; it is JSON whatever came."""
    for status in (200, 500):
        line, _, usage = lines.answered("a", "b", status, data)
        assert b"\n" not in line
        batch_pb2.Batch(prompt_tokens=usage.prompt_tokens, output_tokens=usage.output_tokens)
        assert 0 <= usage.energy_j < math.inf


def _inference() -> bytes:
    tensor = grpc_service_pb2.ModelInferRequest.InferInputTensor(
        name="x", datatype="FP32", shape=[1, 4]
    )
    request = grpc_service_pb2.ModelInferRequest(
        model_name="digits", id="1", inputs=[tensor], raw_input_contents=[bytes(16)]
    )
    request.parameters["timeout"].int64_param = 5
    return request.SerializeToString()


_PROTOBUF_UNITS: Final = (
    b"\x08\x01",  # a varint
    b"\x2a\x00",  # an input without fields
    b"\x22\x00",  # a parameter without fields
    b"\x12\x00",
)
SIGNATURE: Final = Signature(
    (TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "FP32", (-1, 4)),)
)


# ---- router ------------------------------------------------------------------------------------


def openai_answer(data: bytes) -> None:
    """Put receipts into a server's answer, and into the last events of one."""
    receipt = {"energy_j": 1.0}
    openai_messages.with_receipt(data, receipt)
    openai_messages.ending(data, receipt)


def http_infer(body: bytes) -> None:
    """Make a message of an inference over HTTP."""
    wanted, tensors = tensor_json.read(body, None)
    tensor_json.message(wanted, "digits", "", tensors)


def http_generate(body: bytes) -> None:
    """Make a message of an object of inputs."""
    generate.message(documents.parsed_object(body), _GENERATES, "")


def http_predict(body: bytes) -> None:
    """Make a message of instances, as in KServe's first protocol."""
    predict.message(api_requests.document(body, 2**23), _GENERATES_ONE)


def http_raw(body: bytes) -> None:
    """Make a message of a body that is the only input."""
    tensor_json.raw_message(body, _GENERATES_ONE, "")


_INPUT: Final = grpc_service_pb2.ModelMetadataResponse.TensorMetadata
_GENERATES: Final = grpc_service_pb2.ModelMetadataResponse(
    name="digits",
    inputs=[
        _INPUT(name="text_input", datatype="BYTES", shape=[1]),
        _INPUT(name="x", datatype="FP32", shape=[-1, 4]),
    ],
)
_GENERATES_ONE: Final = grpc_service_pb2.ModelMetadataResponse(
    name="digits", inputs=_GENERATES.inputs[1:]
)


def http_text(body: bytes) -> None:
    """Make a message of a request of the OpenAI API for a model of tensors."""
    openai_messages.infer_request(documents.parsed(Completion, body))


def http_passes(body: bytes) -> None:
    """Make a message of a request of the OpenAI API for a server of it, and read it there."""
    found = api_requests.document(body, len(body))
    message = openai_messages.passed(found, body, "m", "/v1/chat/completions")
    prompt_of(message, 2**19)
    worker_api_requests.read(message, OpenAiRuntime(kind="openai", address="127.0.0.1:1"))


_HTTP_INFER: Final = (
    (
        b'{"id": "1", "inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data":'
        b' [[1, 2.5, 3e1, -4]]}], "outputs": [{"name": "y"}], "parameters": {"priority": 1}}'
    ),
    b'{"inputs": [{"name": "s", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}]}',
)
_HTTP_CHAT: Final = (
    (
        b'{"model": "chat", "messages": [{"role": "system", "content": "a"}, {"role": "user",'
        b' "content": [{"type": "text", "text": "b"}]}], "stop": ["c"], "max_tokens": 5}'
    ),
)
_JSON_UNITS: Final = (
    b"{},",
    b"[],",
    b"1,",
    b'"",',
    b'"####":1,',
    b"[[",
    b'{"role":"user","content":""},',
    b"9" * 18 + b",",
    b"9",
)


def grpc_message(data: bytes) -> None:
    """Take compressed messages of gRPC, with four times as much room as they are large."""
    taken: list[object] = []
    room = 4 * len(data)

    def decompress(message: bytes | bytearray) -> None:
        packed = Compressed(message, "gzip", 16 * 2**20)
        nonlocal room
        while not packed.done and room > 0:
            packed.go_on(2**16)
            room -= 2**16
        taken.append(packed)

    reader = MessageReader(taken.append, 16 * 2**20, take_compressed=decompress)
    reader.feed(memoryview(data), 0, len(data))


def header_blocks(data: bytes) -> object:
    """Read the header blocks of a connection, each after its size in two bytes."""
    blocks = HeaderBlocks(
        lambda fields, _: [(name.decode(), value.decode()) for name, value in fields], 16 * 2**10
    )
    position = 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 2], "big")
        blocks.read(data[position + 2 : position + 2 + size])
        position += 2 + size
    return blocks


def _grpc_message(message: bytes) -> bytes:
    packed = gzip.compress(message, mtime=0)
    return b"\x01" + len(packed).to_bytes(4, "big") + packed


def _sized(block: bytes) -> bytes:
    return len(block).to_bytes(2, "big") + block


_KEPT_FIELD: Final = _sized(b"\x40\x01a\x7f\xf9\x1d" + b"v" * 3960)  # a field for the table
_FOUR_TIMES: Final = _sized(b"\x00\x01b\x04####" + b"\xbe" * 4)  # and 4 times what is there


# ---- carbon ------------------------------------------------------------------------------------


def answer(name: str, part: str, data: bytes) -> None:
    """Answer a provider's requests for one path with bytes, and others as recorded."""
    case = CASES[name]
    base = "/api" if name == "entsoe" else ""
    given = {**case.settings, "url": f"https://provider.example{base}"}
    if case.token:
        given["key_env"] = "PATH"  # any that is set
    source = TypeAdapter[Any](carbon_sources.Source).validate_python(given)

    def respond(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        for known, body in case.bodies.items():
            if path.startswith(known) or path.endswith(known):
                return httpx.Response(200, content=data if known == part else body)
        return httpx.Response(404)

    async def read_once() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as client:
            made = provider(source, client)
            assert made is not None
            Feed("x").add(await made.read(NOW, None), NOW)

    asyncio.run(read_once())


def _signal(data: bytes) -> None:
    sample_of(Payload(data), "average", datetime(2026, 3, 1, tzinfo=UTC), None)


def provider_units(body: str) -> Sequence[bytes]:
    """Return pieces of an answer's format: JSON or XML."""
    return (b"<a/>", b"<a>", b'<a b="####"/>') if body.lstrip().startswith("<") else _JSON_UNITS


# ---- identities ----------------------------------------------------------------------------------

_ISSUER: Final = "https://issuer.example"


@cache
def _token() -> tuple[bytes, bytes]:
    """Return a token that is valid for a day, and the JWKS with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    keys = {"keys": [{**public, "alg": "ES256", "kid": "k"}]}
    claims = {"sub": "a", "exp": time.time() + 86_400, "iss": _ISSUER, "aud": "inference"}
    token = jwt.encode(claims, key, "ES256", headers={"kid": "k"})
    return token.encode(), json.dumps(keys).encode()


def _verifier(path: Path) -> TokenVerifier:
    return TokenVerifier(Tokens(jwks_file=path, issuer=_ISSUER, audience="inference"))


@cache
def _known_keys() -> TokenVerifier:
    with TemporaryDirectory(prefix="border-") as folder:
        path = Path(folder) / "jwks.json"
        path.write_bytes(_token()[1])
        return _verifier(path)


def token(data: bytes) -> None:
    """Verify a bearer token; keys are read once, and then not looked for."""
    _known_keys()._looked_s = math.inf
    _known_keys()(data.decode("latin-1"))


# ---- files of operators, and drivers -----------------------------------------------------------


def yaml_file(path: Path) -> None:
    """Read a deployment file up to its values and their digest."""
    data, tree = loader.document(path)
    loader.digest(data)
    loader.line_of(tree, ("models", "digits"))


def pbtxt(data: bytes) -> None:
    """Read a model of a Triton repository."""
    with TemporaryDirectory(prefix="border-") as folder:
        path = Path(folder) / "model" / "config.pbtxt"
        path.parent.mkdir()
        path.write_bytes(data)
        read_repository(Path(folder))


def board(data: bytes) -> None:
    """Identify a GPU by what its driver calls it."""
    identify(
        DriverReading(
            product_name=data.decode(errors="replace"),
            memory_bytes=40 * 2**30,
            compute_capability=(8, 0),
            sm_count=None,
            max_clock_mhz=None,
            limit_w=None,
            memory_gb_per_s=None,
        )
    )


def _onnx() -> bytes:
    kind = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [kind("x", onnx.TensorProto.FLOAT, ["n", 4])],
        [kind("y", onnx.TensorProto.FLOAT, ["n", 4])],
    )
    return onnx.helper.make_model(graph).SerializeToString()


NODE: Final = onnx.ModelProto(
    graph=onnx.GraphProto(node=[onnx.NodeProto(input=["x"], output=["y"], op_type="Identity")])
).SerializeToString()
_YAML: Final = b"version: v1\nmodels:\n  digits: {a: &a [1, 2.5], b: *a}\n"
_PBTXT: Final = b'name: "m"\nbackend: "python"\nmax_batch_size: 8\ninput {name: "x" dims: [4]}\n'

_XML_S, _XML_BYTES = 1e-6, 44.0
"""By the byte, of platforms: an answer has 1 MiB at most, and is read in a thread."""

_PERIOD: Final = (
    b"<Period><timeInterval><start>2026-03-01T00:00Z</start><end>9999-01-01T00:00Z</end>"
    b"</timeInterval><resolution>PT15M</resolution><Point><position>1</position>%b</Point></Period>"
)
"""A position that stands for all that follow."""
PRICE_PERIOD: Final = _PERIOD % b"<price.amount>5</price.amount>"
POWER_PERIOD: Final = _PERIOD % b"<quantity>5</quantity>"
PRICES: Final = (
    b"<Publication_MarketDocument><TimeSeries><currency_Unit.name>EUR</currency_Unit.name>"
    b"<price_Measure_Unit.name>MWH</price_Measure_Unit.name><curveType>A03</curveType>"
)
PRICES_END: Final = b"</TimeSeries></Publication_MarketDocument>"
POWERS: Final = (
    b"<GL_MarketDocument><TimeSeries><inBiddingZone_Domain.mRID>a</inBiddingZone_Domain.mRID>"
    b"<MktPSRType><psrType>B01</psrType></MktPSRType><curveType>A03</curveType>"
)
POWERS_END: Final = b"</TimeSeries></GL_MarketDocument>"

CSV: Final = b"timestamp,carbon_intensity_gco2e_per_kwh\n2026-01-01T00:00:00Z,200\n"


def answer_behind_a_gateway(body: bytes) -> None:
    """Read an answer as one document, and as events in two pieces."""
    for events in (False, True):
        reader = AnswerReader(events=events, arrived_s=0.0)
        half = len(body) // 2
        passed = b"".join(
            b"".join(reader.take(piece, 1.0, last=last))
            for piece, last in ((body[:half], False), (body[half:], True))
        )
        assert passed == body
        reader.usage()


def borders() -> dict[str, Border]:
    """Return every border by name."""
    tensors = partial(tensor_messages.parse, signature=SIGNATURE)
    return {
        "request-head": Border(read_head, [_inference()], units=_PROTOBUF_UNITS),
        "tensors": Border(tensors, [_inference()], units=_PROTOBUF_UNITS),
        "http-infer": Border(http_infer, _HTTP_INFER, units=_JSON_UNITS),
        "http-generate": Border(
            http_generate,
            [b'{"text_input": "a", "x": [[1, 2, 3, 4]], "id": "1", "max_tokens": 5}'],
            units=_JSON_UNITS,
        ),
        "http-predict": Border(
            http_predict,
            [
                b'{"instances": [[1, 2, 3, 4]]}',
                b'{"instances": [{"x": [1, 2, 3, 4]}]}',
            ],
            units=_JSON_UNITS,
            memory_per_byte=48,  # rows as objects; 262,144 values are 16 MiB at most
        ),
        "http-raw": Border(http_raw, [bytes(16)]),
        "http-chat": Border(http_passes, _HTTP_CHAT, units=_JSON_UNITS),
        "http-completion": Border(
            http_text, [b'{"model": "m", "prompt": ["a"]}'], units=_JSON_UNITS
        ),
        "http-object": Border(documents.parsed_object, [b'{"ready": true}'], units=_JSON_UNITS),
        "openai-answer": Border(
            openai_answer,
            [_ANSWER],
            units=(b'"usage"', b'"usage" :', b'"usage":{', b'\\"', b"data: [DONE]", *_JSON_UNITS),
        ),
        "answer-behind-a-gateway": Border(
            answer_behind_a_gateway,
            [_ANSWER, _CHUNK * 2 + b"data: [DONE]\n\n"],
            units=(_CHUNK, b"data: {}\n\n", b'"usage"', b"\n\n", *_JSON_UNITS),
            cpu_s_per_byte=4e-6,  # as of server-events
            memory_per_byte=40,
        ),
        "server-events": Border(
            server_events,
            [_CHUNK, _CHUNK * 2 + b"data: [DONE]\n\n", b"event: a\ndata: {}\n\n"],
            (ServiceError, ValueError),
            units=(_CHUNK, b"data: {}\n\n", b"data: {}\n", b": ping\n", b"\n", *_JSON_UNITS),
            cpu_s_per_byte=4e-6,  # an event of ten bytes is one
            memory_per_byte=40,
        ),
        "server-answer": Border(server_answer, [_ANSWER], (ValueError,), units=_JSON_UNITS),
        "server-refusal": Border(
            server_refusal,
            [b'{"error": {"message": "a", "code": "b", "param": "c"}}', b"<title> a </title>"],
            units=(b"<title>", b" ", b"</title", *_JSON_UNITS),
        ),
        "server-models": Border(
            partial(served_model, name="m"),
            [b'{"data": [{"id": "m", "max_model_len": 9}, {"id": "a", "parent": "m"}]}'],
            (ValueError,),
            units=(b'{"id":"m","parent":"m"},', *_JSON_UNITS),
        ),
        "server-metrics": Border(
            server_metrics,
            [_METRICS],
            (ValueError,),
            units=(b"\n", b"tgi_queue_size 1\n", b'vllm:cache_config_info{a="b"} 1\n', b"a 1\n"),
        ),
        "batch-line": Border(
            partial(lines.parsed, endpoint=_INFER_PATH),
            [
                b'{"custom_id": "a", "method": "POST", "url": "/v2/models/digits/infer", "body": '
                + _HTTP_INFER[0]
                + b"}"
            ],
            (lines.Fault,),
            units=_JSON_UNITS,
        ),
        "batch-answer": Border(batch_answer, [_ANSWER], units=_JSON_UNITS),
        "grpc-message": Border(
            grpc_message,
            [_grpc_message(_inference()), _grpc_message(bytes(2**22))],
            (MessageError,),
        ),
        "header-blocks": Border(
            header_blocks,
            [_KEPT_FIELD + _FOUR_TIMES],
            (HpackError, UnicodeDecodeError),
            units=[_FOUR_TIMES],
            cpu_s_per_byte=2e-6,  # a block of 20 bytes is a call: their number has bounds
        ),
        "join": Border(partial(parsed, planner_pb2.JoinRequest, join), _join_seeds()),
        "report-load": Border(
            partial(parsed, planner_pb2.ReportLoadRequest, report_load), [_load_seed()]
        ),
        "what-if": Border(
            partial(parsed, planner_pb2.WhatIf, partial(from_message, kind=WhatIf)), [_what_if()]
        ),
        "page-token": Border(partial(_text, read_token), [write_token(7).encode()]),
        "step": Border(partial(parsed, steps_pb2.Step, agent_convert.step), _step_seeds()),
        "worker-log": Border(
            partial(in_file, last_words),
            [b'{"event": "a", "error": "b"}\n', b"Killed\n"],
            units=(b"\n", *_JSON_UNITS),
        ),
        "segment-journal": Border(
            partial(in_file, lambda path: Store(path, Journal).load()),
            [written(lambda path: Store(path, Journal).save(Journal((SPEC,))))],
        ),
        "transaction-journal": Border(
            partial(in_file, lambda path: Store(path, PriorState).load()),
            [written(lambda path: Store(path, PriorState).save(PRIOR))],
        ),
        "csv-trace": Border(
            partial(in_file, read_trace),
            [CSV],
            (ConfigError,),
            units=(b",", b'"', b"\n", "\ufdfa".encode(), b'"",', b"2026-01-01T00:00:00Z,1\n"),
            cpu_s_per_byte=100e-9,  # a time is parsed
        ),
        "price-document": Border(
            document_prices,
            [PRICES + PRICE_PERIOD + PRICES_END],
            units=(b"<a/>", b'<a b="####"/>', PRICE_PERIOD),
            cpu_s_per_byte=_XML_S,
            memory_per_byte=_XML_BYTES,
        ),
        "yaml": Border(
            partial(in_file, yaml_file),
            [_YAML],
            (ConfigError,),
            units=(b"[", b"1,", b"- ", b"? ", b"*a,", b"&a ", b"{a: 1},", b"a####: 1\n", b"1:"),
            cpu_s_per_byte=4e-6,
            memory_per_byte=560,
        ),
        "jwt": Border(token, [_token()[0]], units=(b".", b"e30.", b"W1tb", b"A")),
        "jwks": Border(
            partial(in_file, _verifier),
            [_token()[1]],
            units=(*_JSON_UNITS, b'{"kty":"oct","k":"AA"},', b'{"kid":[]},'),
            cpu_s_per_byte=200e-9,  # each key is made, of at most 256
        ),
        "onnx": Border(
            partial(in_file, load_onnx),
            [_onnx()],
            units=(NODE, *_PROTOBUF_UNITS, b"\x3a\x02\x0a\x00"),
            cpu_s_per_byte=4e-6,
            memory_per_byte=400,
        ),
        "pbtxt": Border(
            pbtxt,
            [_PBTXT],
            units=(b"input{}", b"step{", b"'x' ", b"dims: 1 ", b"a{", b"[a.b/c]: 1 "),
            cpu_s_per_byte=2e-6,
            memory_per_byte=40,
        ),
        "nvml-name": Border(board, [b"NVIDIA A100-SXM4-40GB"], units=(b"A", b"-", b" 40GB")),
        "mqtt-signal": Border(
            _signal,
            [b'{"schema": 1, "intensity_gco2e_per_kwh": 200}', b"200"],
            (Refused,),
            units=_JSON_UNITS,
        ),
        **{
            f"provider-{name}-{part.strip('/').replace('/', '-')}": Border(
                partial(answer, name, part),
                [body.encode()],
                (SourceFailed,),
                units=provider_units(body),
                cpu_s_per_byte=_XML_S if name == "entsoe" else 40e-9,
                memory_per_byte=_XML_BYTES if name == "entsoe" else 8.0,
            )
            for name, case in CASES.items()
            for part, body in case.bodies.items()
        },
    }
