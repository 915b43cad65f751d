"""Real networks in stages (mu-Serve, ATC'24, sections 3.1 and 4.4): do they answer as before?

The light models inside PyPI's `onnx` with random weights, the MiniLM encoder and the demo's family,
in 2 to 4 stages for either objective; each cut is checked by running it. Times are the data sheet's
of a V100, mu-Serve's GPU, at batch 8 where the file leaves that free. "cluster" has operator
clusters as units, "single" every kernel that a legal cut follows, as in AlpaServe.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, Final, get_args

import onnx

from benchmarks._networks import light, light_names, minilm
from benchmarks.harness import Figures, main, timed_s
from services.gpuagent.profiling.core.roofline import Roofline
from services.kit.errors import FailedPrecondition
from services.kit.hardware import gpu_types
from services.kit.operators.core.clock_sensitivity import INSENSITIVE, Cost, total
from services.kit.operators.core.graph import Graph
from services.kit.operators.onnx_reader import read
from services.kit.operators.random_inputs import Sizes
from services.local.demo import model_family
from services.planner.adapters.onnx_stages import cut, verify
from services.planner.core.partitioning.model import StageObjective
from services.planner.core.partitioning.partition import THRESHOLD, PartitionRequest, partition

GPU: Final = Roofline.of(gpu_types.load("v100"))
SIZES: Final = Sizes(batch=8, other=128)
STAGES: Final = (2, 3, 4)
LARGE_BYTES: Final = 200e6
"""Networks with more weights are cut into three stages only: checks take their time."""

Networks = Mapping[str, Callable[[], onnx.ModelProto]]


def everything() -> Networks:
    """Return all networks, by name."""
    demo = {name: partial(_demo, name) for name in (*model_family.FAMILY, *model_family.CONVNETS)}
    return {**{name: partial(light, name) for name in light_names()}, "minilm": minilm, **demo}


def small() -> Networks:
    """Return three that take seconds."""
    return {name: everything()[name] for name in ("squeezenet", "shufflenet", "minilm")}


def measure(networks: Networks) -> Sequence[Figures]:
    """Cut and check every network."""
    sensitive: list[Mapping[str, Any]] = []
    rows: list[Mapping[str, Any]] = []
    for name, build in networks.items():
        model = build()
        graph = read(model, name, SIZES)
        costs = [GPU.cost(each) for each in graph.operators]
        sensitive.append(_sensitivity(graph, costs))
        rows += _network(model, graph, costs)
    note = "apart: largest difference over the largest number of a tensor, handed on or answered"
    return [
        Figures("Sensitivity, V100 (modelled)", sensitive, "score: 0..2, insensitive below 1"),
        Figures("Networks in stages, each checked", rows, note),
    ]


def _sensitivity(graph: Graph, costs: Sequence[Cost]) -> Mapping[str, Any]:
    kernels = [cost for cost in costs if cost.latency_s]
    whole = total(costs)
    return {
        "network": graph.name,
        "kernels": len(kernels),
        "gmacs_per_item": sum(o.work.flops for o in graph.operators) / 2e9 / graph.batch_size,
        "latency_ms": whole.latency_s * 1e3,
        "score": whole.score,
        "insensitive_share": sum(c.score < INSENSITIVE for c in kernels) / len(kernels),
    }


def _network(
    model: onnx.ModelProto, graph: Graph, costs: Sequence[Cost]
) -> Iterator[Mapping[str, Any]]:
    large = sum(graph.constants.values()) > LARGE_BYTES
    for stages, objective in product(STAGES[1:2] if large else STAGES, get_args(StageObjective)):
        try:
            yield _row(model, graph, costs, PartitionRequest(stages, objective))
        except FailedPrecondition as error:
            if error.reason == "STAGES_DIFFER":
                raise
            return  # it has no more legal cuts


def _row(
    model: onnx.ModelProto, graph: Graph, costs: Sequence[Cost], wanted: PartitionRequest
) -> Mapping[str, Any]:
    found, took_s = timed_s(partition, graph, costs, wanted)
    single = partition(
        graph, costs, PartitionRequest(wanted.stages, wanted.objective, threshold=0.0)
    )
    parts = [each.SerializeToString() for each in cut(model, found)]
    sizes = (Sizes(1, 20), Sizes(5, 33)) if graph.batches else (Sizes(),)
    agreement = verify(model, parts, sizes)
    whole_s = total(costs).latency_s
    return {
        "network": graph.name,
        "stages": wanted.stages,
        "objective": wanted.objective,
        "clusters": len(found.clusters),
        "threshold_kept": found.threshold == THRESHOLD,
        "longest_cluster": max(each.latency_s for each in found.stages) / whole_s,
        "longest_single": max(each.latency_s for each in single.stages) / whole_s,
        "handed_on_kib": sum(each.transfer_bytes for each in found.stages) / 1024,
        "scores": " ".join(f"{each.sensitivity:.1f}" for each in found.stages),
        "took_ms": took_s * 1e3,
        "runs": agreement.runs,
        "apart": agreement.worst,
    }


def _demo(name: str) -> onnx.ModelProto:
    return onnx.load_from_string(model_family.build(name))


if __name__ == "__main__":
    main("partitioning", lambda: measure(everything()), quick=lambda: measure(small()))
