"""Stages of a partitioning as ONNX models, and verification that their chain equals the model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from onnx.utils import Extractor

from services.kit.errors import FailedPrecondition
from services.kit.operators.annotation import described
from services.kit.operators.random_inputs import Array, Sizes, drawn
from services.kit.operators.shape_trace import session
from services.planner.core.partitioning.model import Partition, Partitioning


def cut(model: onnx.ModelProto, partitioning: Partitioning) -> tuple[onnx.ModelProto, ...]:
    """Return the stages as models; names of tensors stay the same.

    Parts that depend on no input, and shapes computed from one, are copied to each stage that needs
    them. A tensor that a later stage needs passes unchanged through those in between.

    Args:
        model: The partitioning's graph as an ONNX model.
        partitioning: The partitioning.
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


RELATIVE: Final = 1e-3
"""Tolerance relative to the largest number of an output. Runtimes fuse operators across a cut and
then sum in another order; a float32 has 1e-7, and hundreds of layers add up."""

_DRAWS: Final = 3


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of the stages. Attributes: runs, worst (difference over the largest number)."""

    runs: int
    worst: float


def verify(whole: onnx.ModelProto, stages: Sequence[bytes], sizes: Sequence[Sizes]) -> Agreement:
    """Run both on the same random inputs; compare their outputs and the tensors between stages.

    Args:
        whole: The model.
        stages: Its stages, in order.
        sizes: Sizes for the model's free dimensions, with a few random inputs each.

    Raises:
        FailedPrecondition: They differ: integers at all, floats by more than `RELATIVE`.
        InvalidArgument: ONNX Runtime does not take one of them.
    """
    chain = [session(stage) for stage in stages]
    handed = {each.name for stage in chain[:-1] for each in stage.get_outputs()}
    first, inner = session(whole.SerializeToString()), session(_with_outputs(whole, handed))
    answers = [[each.name for each in model.get_outputs()] for model in (first, chain[-1])]
    if answers[0] != answers[1]:
        _refuse(", ".join(answers[0]), f"the names {', '.join(answers[1])} in the last stage")
    worst, runs = 0.0, 0
    for size in sizes:
        for seed in range(_DRAWS):
            given = drawn(first.get_inputs(), size, seed)
            wanted = {**given, **_run(inner, given), **_run(first, given)}
            found = _through(chain, given)
            worst = max(worst, *(_difference(name, wanted[name], found[name]) for name in found))
            runs += 1
    return Agreement(runs, worst)


def _with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> bytes:
    """Return the model with inner tensors as additional outputs."""
    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    known = {each.name for each in (*model.graph.output, *model.graph.input)}
    extended.graph.output.extend(onnx.ValueInfoProto(name=n) for n in sorted(set(names) - known))
    serialized: bytes = extended.SerializeToString()
    return serialized


def _through(chain: Sequence[Any], given: Mapping[str, Array]) -> Mapping[str, Array]:
    """Return the outputs of all stages; each gets only the outputs of the one before."""
    carried, found = given, dict[str, Array]()
    for stage in chain:
        wanted = {each.name: carried[each.name] for each in stage.get_inputs()}
        carried = _run(stage, wanted)
        found.update(carried)
    return found


def _run(stage: Any, given: Mapping[str, Array]) -> Mapping[str, Array]:
    names = [each.name for each in stage.get_outputs()]
    return dict(zip(names, stage.run(names, dict(given)), strict=True))


def _difference(name: str, wanted: Array, found: Array) -> float:
    if not isinstance(wanted, np.ndarray):
        return 0.0 if wanted == found else _refuse(name, "values that differ")
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return _refuse(name, "another shape or datatype")
    if wanted.dtype.kind != "f":
        return 0.0 if np.array_equal(wanted, found) else _refuse(name, "values that differ")
    if not np.array_equal(np.isfinite(wanted), np.isfinite(found)):
        return _refuse(name, "numbers that are not finite elsewhere")
    finite = np.isfinite(wanted)
    largest = float(np.max(np.abs(wanted[finite]), initial=0.0)) or 1.0
    apart = float(np.max(np.abs(wanted[finite] - found[finite]), initial=0.0)) / largest
    far = f"values apart by {apart:.2g} of the largest"
    return apart if apart <= RELATIVE else _refuse(name, far)


def _refuse(name: str, what: str) -> float:
    raise FailedPrecondition(
        f"stages do not answer as the whole model does: {name} has {what}", reason="STAGES_DIFFER"
    )
