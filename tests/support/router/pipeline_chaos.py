"""The chaos world with pipelines: workers that read one stage's tensors and give the next one's."""

from collections.abc import Mapping
from random import Random

from inference import grpc_service_pb2 as pb
from services.router.core.model import Instance, ModelRoutes, RoutingTable
from services.router.core.wire import Head
from services.router.runtime.decision_executor import DecisionExecutor
from tests.support.router.chaos import CREDITS, MODELS, NODES, SLO_S, Worker, World

DEEP = 3
POISONED_AT = 1
"""The stage whose workers die of a poisoned request."""

POISON = b"poison"
WHOLE = "whole"


def endpoint(model: str, node: str, part: str, number: int) -> str:
    """Return "model-node-part.number:1"; the part is a stage, or WHOLE."""
    return f"{model}-{node}-{part}.{number}:1"


# The first model also has a variant in one piece; the second has nothing but its pipeline.
ENDPOINTS = tuple(
    endpoint(model, node, part, number)
    for model, parts in zip(MODELS, ((WHOLE, "0", "1", "2"), ("0", "1", "2")), strict=True)
    for node in NODES
    for part in parts
    for number in range(2)
)


def request_of(name: str, payload: bytes) -> bytes:
    """Return a client's request: for an output that only the last stage has."""
    x = pb.ModelInferRequest.InferInputTensor(name="x", datatype="UINT8", shape=[1, len(payload)])
    mask = pb.ModelInferRequest.InferInputTensor(name="mask", datatype="UINT8", shape=[1, 1])
    return pb.ModelInferRequest(
        model_name="any",
        id=name,
        inputs=[x, mask],
        raw_input_contents=[payload, b"\1"],
        outputs=[pb.ModelInferRequest.InferRequestedOutputTensor(name="y")],
    ).SerializeToString()


def expected(payload: bytes) -> set[bytes]:
    """Return what may be answered: by the pipeline, or by the variant in one piece."""
    return {payload + b"".join(b"|%d" % stage for stage in range(DEEP)), payload + b"|whole"}


class StageWorker(Worker):
    """Appends its stage to the tensor; takes exactly the inputs that are its stage's."""

    @property
    def _takes(self) -> tuple[str, ...]:
        stage = self.instance.stage
        return (("x", "mask"), ("h1",), ("h2", "mask"))[stage]  # the mask skips a stage

    def _metadata(self) -> bytes:
        last = not self.instance.feeds_next_stage
        tensor = pb.ModelMetadataResponse.TensorMetadata
        outputs = ["y"] if last else [f"h{self.instance.stage + 1}"]
        return pb.ModelMetadataResponse(
            inputs=[tensor(name=name) for name in self._takes],
            outputs=[tensor(name=name) for name in outputs],
        ).SerializeToString()

    def _poisonous(self, body: bytes) -> bool:
        return self.instance.stage == POISONED_AT and POISON in body

    def _answer(self, body: bytes) -> bytes:
        request = pb.ModelInferRequest.FromString(body)
        assert tuple(tensor.name for tensor in request.inputs) == self._takes
        wanted = [each.name for each in request.outputs]
        assert wanted == ["y"] or self.instance.feeds_next_stage, (
            "the last stage knows what is wanted"
        )
        whole = self.instance.stages == 1
        word = b"|whole" if whole else b"|%d" % self.instance.stage
        raw = dict(zip(self._takes, request.raw_input_contents, strict=True))
        name = f"h{self.instance.stage + 1}" if self.instance.feeds_next_stage else "y"
        return pb.ModelInferResponse(
            model_name=request.model_name,
            id=request.id,
            outputs=[pb.ModelInferResponse.InferOutputTensor(name=name, datatype="UINT8")],
            raw_output_contents=[raw[self._takes[0]] + word],
        ).SerializeToString()


class PipelineWorld(World):
    """A router whose models are pipelines, on workers that come and go."""

    def _connect(self, instance: Instance, listener: DecisionExecutor) -> StageWorker:
        made = StageWorker(instance, listener, self.agents, self.books)
        self.workers[instance.endpoint] = made
        return made

    def table(
        self, revision: int, endpoints: object = ENDPOINTS, models: object = MODELS
    ) -> RoutingTable:
        """Return a table in which these endpoints share what comes to their stage."""
        assert isinstance(endpoints, (list, tuple))
        assert isinstance(models, (list, tuple))
        return RoutingTable(
            revision,
            revision,
            tuple(
                ModelRoutes(
                    model,
                    SLO_S,
                    95.0,
                    "shares",
                    tuple(_instance(each) for each in endpoints if each.startswith(model)),
                )
                for model in models
            ),
        )

    def left_over(self) -> Mapping[str, int]:
        """Return what the router still holds, at any stage."""
        registry = self.engine.registry
        parts = [part for first in registry for part in registry.dispatchers(first.routes.model)]
        return {
            "callers": len(self.engine._callers),
            "waiting": sum(part.queue_depth for part in parts),
            "in_flight": sum(part.in_flight for part in parts),
            "bytes": self.byte_budget.used_bytes,
        }

    async def send(self, model: str, body: bytes, patience_s: float | None) -> None:
        """Send a request with `body` as its payload, and write down how it ends."""

        async def answered_right() -> bool:
            answer = await self.engine.infer(Head(model), request_of(body.decode(), body), None)
            said = pb.ModelInferResponse.FromString(answer.body)
            return said.raw_output_contents[0] in expected(body) and said.id == body.decode()

        await self.books.follow(body, patience_s, answered_right())


def _instance(name: str) -> Instance:
    model, node, rest = name.split("-")
    part, _, _ = rest.partition(".")
    if part == WHOLE:
        return Instance(name, name, model, "one", 0.8, 0.25, CREDITS, zone=node)
    return Instance(
        name, name, model, "deep", 0.9, 0.25, CREDITS, zone=node, stage=int(part), stages=DEEP
    )


def poisoned(rng: Random, share: float) -> bytes:
    """Return what makes a payload poisonous, now and then."""
    return POISON if rng.random() < share else b""
