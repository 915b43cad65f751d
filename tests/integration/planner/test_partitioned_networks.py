"""Real networks in stages; `python -m benchmarks.partitioning` cuts large ones as well."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from benchmarks._networks import light, minilm
from services.gpuagent.profiling.core.roofline import Roofline
from services.kit.errors import FailedPrecondition
from services.kit.hardware import gpu_types
from services.kit.operators.onnx_reader import read
from services.kit.operators.random_inputs import Sizes
from services.local.demo import convnet
from services.planner.adapters.onnx_stages import cut, verify
from services.planner.core.partitioning.model import Partitioning
from services.planner.core.partitioning.partition import PartitionRequest, partition

V100 = Roofline.of(gpu_types.load("v100"))

NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "squeezenet": lambda: light("squeezenet"),
    "shufflenet": lambda: light("shufflenet"),
    "minilm": minilm,
    "conv-16": lambda: onnx.load_from_string(convnet.build(16)),
}


def parted(model: onnx.ModelProto, stages: int) -> Partitioning:
    graph = read(model, "network", Sizes(batch=2, other=12))
    return partition(graph, [V100.cost(each) for each in graph.operators], PartitionRequest(stages))


@pytest.mark.parametrize("name", NETWORKS)
def test_stages_answer_as_the_whole_network_does(name: str) -> None:
    """At two batch sizes where the network leaves that free, and with what each hands on."""
    model = NETWORKS[name]()
    found = parted(model, 3)
    stages = cut(model, found)

    for stage in stages:
        onnx.checker.check_model(stage)
    assert all(stage.graph.node for stage in stages)
    sizes = (Sizes(1, 9), Sizes(5, 20)) if found.graph.batches else (Sizes(),)
    agreement = verify(model, [stage.SerializeToString() for stage in stages], sizes)
    assert agreement.runs == 3 * len(sizes)
    assert agreement.worst < 1e-4


def test_a_stage_takes_batches_of_any_size_where_the_network_does() -> None:
    """The worker puts requests into one batch only if the first size of every tensor is free."""
    for stage in cut(minilm(), parted(minilm(), 2)):
        for value in (*stage.graph.input, *stage.graph.output):
            assert value.type.tensor_type.shape.dim[0].dim_param


def test_stages_that_answer_otherwise_are_found_out() -> None:
    """One weight of one stage is changed: the check would be worth nothing if it missed that."""
    model = light("squeezenet")
    first, second = cut(model, parted(model, 2))
    weight = second.graph.initializer[0]
    values = numpy_helper.to_array(weight).copy()
    values.flat[0] += np.abs(values).max()
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))

    with pytest.raises(FailedPrecondition, match="do not answer as the whole model"):
        verify(model, [first.SerializeToString(), second.SerializeToString()], [Sizes()])
