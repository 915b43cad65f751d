"""Writes the stages of a partitioning as ONNX models, their weights inside."""

from __future__ import annotations

import onnx
from onnx.utils import Extractor

from services.kit.operators.annotation import described
from services.planner.core.partitioning.model import Partition, Partitioning


def cut(model: onnx.ModelProto, partitioning: Partitioning) -> tuple[onnx.ModelProto, ...]:
    """Return the stages as models; names of tensors stay what they are.

    What depends on no input, and shapes that are computed from one, go to each stage that needs
    them. A tensor that a later stage needs goes through those between as it is.

    Args:
        model: What was read as the partitioning's graph.
        partitioning: Where to cut it.
    """
    stages = partitioning.stages
    carried = {name for stage in stages[:-1] for name in stage.outputs}
    extractor = Extractor(described(model, partitioning.graph, carried))
    return tuple(_stage(extractor, stage, len(stages)) for stage in stages)


def _stage(extractor: Extractor, stage: Partition, count: int) -> onnx.ModelProto:
    made: onnx.ModelProto = extractor.extract_model(list(stage.inputs), list(stage.outputs))
    made.producer_name = "cinquefoil"
    made.graph.name = f"{stage.model}, stage {stage.index} of {count}"
    return made
