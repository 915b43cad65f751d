"""Times operators one by one on a device: what mu-Serve does offline (ATC'24, section 3.1).

An operator becomes a model of its own, once and sixteen times over, with inputs that it has in the
whole model. The difference of the two runs is fifteen operators' time: what ONNX Runtime takes to
begin and end a run is in neither.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import onnx
import onnxruntime as ort
from onnx.utils import Extractor

from services.gpuagent.profiling.core.operator_bucket import Bucket
from services.kit.operators.annotation import described
from services.kit.operators.core.clock_sensitivity import Cost
from services.kit.operators.core.graph import Graph, Operator
from services.kit.operators.random_inputs import Sizes
from services.kit.operators.shape_trace import Tracer, session

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"

_COPIES: Final = 16
_WARM_UP: Final = 3


@dataclass(frozen=True, slots=True)
class OperatorEffort:
    """Duration of an operator's measurement.

    Attributes:
        runs: Of each of its two models.
        most_s: Less runs, where they take longer than that together, s.
        settle_s: A locked clock is in force within that, s.
    """

    runs: int = 300
    most_s: float = 0.2
    settle_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A device whose operators were timed. Attributes: device, costs, method (of times)."""

    method: ClassVar[str] = "measured"

    device: str
    costs: Mapping[Bucket, Cost]

    def cost(self, operator: Operator) -> Cost:
        """Return an operator's times at both clocks."""
        return self.costs[Bucket.of(operator)]


class Bench:
    """Operators of a model, ready to be timed. Blocks.

    Args:
        model: The model.
        graph: What it was read as.
        sizes: What is free in its inputs is that large.
        provider: Execution provider to run them with.
    """

    def __init__(
        self, model: onnx.ModelProto, graph: Graph, sizes: Sizes, provider: str = CUDA
    ) -> None:
        self._extractor = Extractor(described(model, graph, graph.tensors))
        self._graph = graph
        names = {name for each in graph.operators for name in each.inputs}
        self._values = Tracer(model).values(sizes, sorted(names))
        self._provider = provider

    def latencies_s(self, buckets: Iterable[Bucket], effort: OperatorEffort) -> dict[Bucket, float]:
        """Time one operator of each bucket, at the clock that the device has now, s.

        Raises:
            InvalidArgument: ONNX Runtime does not run one of them alone.
        """
        examples = {Bucket.of(each): each for each in reversed(self._graph.operators)}
        return {bucket: self._latency_s(examples[bucket], effort) for bucket in buckets}

    def _latency_s(self, operator: Operator, effort: OperatorEffort) -> float:
        one = self._run(operator, copies=1)
        many = self._run(operator, copies=_COPIES)
        ones, manys = [], []
        for number in range(_WARM_UP + effort.runs):
            began_s = time.perf_counter()
            one()
            middle_s = time.perf_counter()
            many()
            ended_s = time.perf_counter()
            if number >= _WARM_UP:
                ones.append(middle_s - began_s)
                manys.append(ended_s - middle_s)
            if ones and sum(ones) + sum(manys) > effort.most_s:
                break
        apart_s = statistics.median(manys) - statistics.median(ones)
        return max(apart_s / (_COPIES - 1), 0.0)

    def _run(self, operator: Operator, copies: int) -> Callable[[], None]:
        """Return what runs copies of an operator and waits for them; nothing leaves the device."""
        model = _repeated(self._extractor, operator, copies)
        runner = session(model.SerializeToString(), optimised=False, provider=self._provider)
        place = "cuda" if self._provider == CUDA else "cpu"
        binding = runner.io_binding()
        for name in operator.inputs:
            value = ort.OrtValue.ortvalue_from_numpy(self._values[name], place, 0)
            binding.bind_ortvalue_input(name, value)
        for output in runner.get_outputs():
            binding.bind_output(output.name, place)

        def run() -> None:
            runner.run_with_iobinding(binding)
            binding.synchronize_outputs()

        return run


def missing(graph: Graph, known: Callable[[Bucket], object | None]) -> tuple[Bucket, ...]:
    """Return the buckets of a model's kernels that are not known, each once."""
    kernels = (Bucket.of(each) for each in graph.operators if not each.work.free)
    return tuple(bucket for bucket in dict.fromkeys(kernels) if known(bucket) is None)


def _repeated(extractor: Extractor, operator: Operator, copies: int) -> Any:
    made = extractor.extract_model(list(operator.inputs), list(operator.outputs))
    (node,) = (each for each in made.graph.node if operator.outputs[0] in each.output)
    for number in range(1, copies):
        copy = made.graph.node.add()
        copy.CopyFrom(node)
        copy.name = f"{node.name}.{number}"
        del copy.output[:]
        copy.output.extend(f"{name}.{number}" if name else "" for name in node.output)
        names = (f"{name}.{number}" for name in operator.outputs)
        made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return made
