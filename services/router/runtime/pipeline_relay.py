"""Carries requests from stage to stage; what it decides, the engine carries out."""

from __future__ import annotations

from collections.abc import Iterator

from inference import grpc_service_pb2 as pb
from services.kit.errors import ServiceError
from services.router.core.dispatch.decisions import Decision, Fail, Restart
from services.router.core.model import Instance, Request
from services.router.core.model_registry import ModelRegistry
from services.router.core.pipeline.pipeline_request import PipelineRequest
from services.router.core.worker_port import Hello, Result

Key = tuple[str, str, int]
"""Model, variant and stage."""


class PipelineRelay:
    """Requests between two stages.

    Args:
        registry: Knows the stages.
        numbers: For the requests of later stages.
    """

    def __init__(self, registry: ModelRegistry, numbers: Iterator[int]) -> None:
        self._registry = registry
        self._numbers = numbers
        self._described: dict[Key, pb.ModelMetadataResponse] = {}

    def hello(self, instance: Instance, hello: Hello) -> Hello | None:
        """Take a stage's hello; return the whole model's, once every stage has said its own."""
        model, variant = instance.model, instance.variant
        described = pb.ModelMetadataResponse.FromString(hello.metadata)
        self._described[model, variant, instance.stage] = described
        stages = [self._described.get((model, variant, at)) for at in range(instance.stages)]
        known = [each for each in stages if each is not None]
        if len(known) < instance.stages:
            return None
        return Hello(hello.credits, _whole(known).SerializeToString())

    def onward(
        self, instance: Instance, request: Request, result: Result, now_s: float
    ) -> list[Decision]:
        """Give a request that a stage has answered to the next."""
        pipeline = request.pipeline or PipelineRequest(request)
        described = self._described.get((instance.model, instance.variant, instance.stage + 1))
        takes = [tensor.name for tensor in described.inputs] if described else ()
        try:
            standing = pipeline.onward(
                instance, result, number=next(self._numbers), takes=takes, now_s=now_s
            )
        except ServiceError as error:
            return [Fail(request, error)]
        following = self._registry.after(instance)
        return [Restart(standing)] if following is None else following.resume(standing, now_s)

    def again(self, request: Request, now_s: float) -> list[Decision]:
        """Have a request whose pipeline is gone begin anew."""
        pipeline = request.pipeline
        if pipeline is None:
            return []
        try:
            first = self._registry.model(request.model)
        except ServiceError as error:
            return [Fail(request, error)]
        return first.resume(pipeline.again(next(self._numbers), now_s), now_s)


def _whole(stages: list[pb.ModelMetadataResponse]) -> pb.ModelMetadataResponse:
    """Return what a pipeline takes from clients, and what it gives them."""
    found = pb.ModelMetadataResponse()
    found.CopyFrom(stages[0])
    given = {tensor.name for stage in stages for tensor in stage.outputs}
    there = {tensor.name for tensor in found.inputs}
    for stage in stages[1:]:
        for tensor in stage.inputs:
            if tensor.name not in given | there:
                there.add(tensor.name)
                found.inputs.add().CopyFrom(tensor)
    del found.outputs[:]
    found.outputs.extend(stages[-1].outputs)
    return found
