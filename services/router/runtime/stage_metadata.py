"""Tensors of a pipeline's stages, as their workers describe them."""

from __future__ import annotations

from collections.abc import Sequence

from inference import grpc_service_pb2 as pb
from services.router.core.model import Instance
from services.router.core.worker_port import Hello


class StageMetadata:
    """The newest metadata of each stage, by model, variant and stage."""

    def __init__(self) -> None:
        self._stages: dict[tuple[str, str, int], pb.ModelMetadataResponse] = {}

    def add(self, instance: Instance, hello: Hello) -> Hello | None:
        """Take a stage's hello; return the whole model's once every stage is known."""
        model, variant = instance.model, instance.variant
        metadata = pb.ModelMetadataResponse.FromString(hello.metadata)
        self._stages[model, variant, instance.stage] = metadata
        stages = [self._stages.get((model, variant, at)) for at in range(instance.stages)]
        known = [each for each in stages if each is not None]
        if len(known) < instance.stages:
            return None
        return Hello(hello.credits, _whole(known).SerializeToString())

    def inputs_after(self, instance: Instance) -> Sequence[str]:
        """Return the input names of the stage after an instance's; empty: not known."""
        found = self._stages.get((instance.model, instance.variant, instance.stage + 1))
        return [tensor.name for tensor in found.inputs] if found else ()


def _whole(stages: Sequence[pb.ModelMetadataResponse]) -> pb.ModelMetadataResponse:
    """Return a pipeline's inputs from clients and outputs to clients."""
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
