"""ONNX Runtime: a loaded file, its signature, and its runs."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import onnxruntime as ort

from services.gpuagent.worker import providers
from services.gpuagent.worker.tensors import DATATYPES, Array, blank
from services.kit.operators.batch_invariance import FREE_SIZES, why_alone
from services.kit.operators.zip_map import MAPS, scores
from services.kit.telemetry import logs

WARM_UP_S: Final = 10.0
"""Longest warm-up, s; `workers.load_timeout_s`, a minute by default, is for all of a start."""

_log = logs.get("worker")

_DATATYPES: Final = {each.onnx: name for name, each in DATATYPES.items()}
_OUTPUTS: Final = _DATATYPES | dict.fromkeys(MAPS, "FP32")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor that a model takes or gives.

    Attributes:
        name: As in the file.
        datatype: As the protocol names it, for example "FP32".
        shape: Sizes; -1: any.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """The tensors that a model takes and gives.

    Attributes:
        inputs, outputs: In the order of the file.
        left_out: Outputs that have no form in the protocol, with their types.
        alone: Why requests may not share a run although the first dimensions are free.
        by_name: The inputs.
        batches: Requests may share a run.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)
    alone: str = ""
    by_name: Mapping[str, TensorSpec] = field(init=False, repr=False, compare=False)
    batches: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fixed = object.__setattr__
        fixed(self, "by_name", {spec.name: spec for spec in self.inputs})
        tensors = (*self.inputs, *self.outputs)
        free = all(spec.shape[:1] == (-1,) for spec in tensors)
        fixed(self, "batches", free and not self.alone)
        if not free:
            fixed(self, "alone", self.alone or "the first size of a tensor of its is fixed")


class Engine:
    """A loaded model. `run` blocks and releases the GIL: call it in a thread.

    Args:
        file: ONNX file.
        provider: Execution provider; the CPU's stands behind it for operators it lacks.
        threads: Threads within an operator, where the CPU computes. Operators run one by one.

    Raises:
        RuntimeError: The file cannot be loaded, the session does not use the provider, or an input
            or output is no tensor of a datatype that the protocol can carry.

    Attributes:
        provider: The session's own.
        signature: What the model takes and gives.
    """

    def __init__(self, file: Path, provider: str, threads: int = 1) -> None:
        if provider not in ort.get_available_providers():
            raise RuntimeError(f"no {provider}: {providers.missing(provider)}")
        providers.preload(provider)
        options = ort.SessionOptions()
        # One process is one stream of batches: parallelism is the planner's, by processes, and by
        # the cores of a slice.
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Threads that spin while they wait take energy, and the cores of the batch's own operators.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 4  # errors are raised too, and logged where they are caught
        chain = list(providers.CHAINS[provider])
        try:
            self._session = ort.InferenceSession(str(file), options, providers=chain)
        except Exception as error:  # ONNX Runtime's errors share no base class
            raise RuntimeError(f"{file}: {error}") from error
        providers.require(provider, self._session)
        self.provider = provider
        given = self._session.get_outputs()
        outputs = [value for value in given if value.type in _OUTPUTS]
        left_out = {value.name: value.type for value in given if value.type not in _OUTPUTS}
        if not outputs:
            raise RuntimeError(f"{file} has no output that is a tensor")
        for name, kind in left_out.items():
            _log.warning("an output has no form in the protocol", output=name, type=kind)
        self.signature = Signature(
            tuple(_spec(value) for value in self._session.get_inputs()),
            tuple(_scores(value) if value.type in MAPS else _spec(value) for value in outputs),
            left_out,
        )
        self._maps = [place for place, value in enumerate(outputs) if value.type in MAPS]
        self._names = [spec.name for spec in self.signature.outputs]
        self._file = file

    def prove_batches(self, batch_size: int) -> None:
        """Find out whether requests may share a run: `signature` says so afterwards.

        Args:
            batch_size: Items of the largest batch, >= 1.
        """
        if not self.signature.batches:
            return
        inputs = self._session.get_inputs()
        # TensorRT builds an engine for every new range of sizes: those that are warm are tried.
        sizes = (1,) if self.provider == providers.TENSORRT else FREE_SIZES
        why = why_alone(self._file, inputs, self._names, self.run, batch_size, free_sizes=sizes)
        if why:
            _log.warning("requests do not share batches", why=why)
            self.signature = replace(self.signature, alone=why)

    def warm_up(self, batch_size: int) -> None:
        """Run batches of every size that may come, where a GPU computes: the first takes longest.

        On an H100 it takes 20 to 60 ms, later ones 1. Inputs are blank, of size 1 where they are
        free. A size that fails, as does a model that refuses zeros, and those above it begin cold;
        the log says so.

        Args:
            batch_size: Items of the largest batch, >= 1.
        """
        until_s = time.monotonic() + WARM_UP_S
        for items in self._cold_sizes(batch_size):
            if time.monotonic() > until_s:
                why = f"smaller ones took {WARM_UP_S:g} s"
            else:
                why = self._failure(items)
            if why:
                _log.warning("large batches begin cold", from_items=items, why=why)
                return

    def _failure(self, items: int) -> str:
        """Run a blank batch; return why it failed, or ""."""
        try:
            self.run(self._blank(items))
        except Exception as error:  # noqa: BLE001 - ONNX Runtime's errors share no base class
            return repr(error)[:500]
        return ""

    def _cold_sizes(self, batch_size: int) -> Sequence[int]:
        if self.provider == providers.CPU:
            return ()
        if not self.signature.batches:
            return (1,)
        if self.provider == providers.TENSORRT:  # it builds an engine for the range of sizes seen
            return (1, batch_size)
        return range(1, batch_size + 1)

    def _blank(self, items: int) -> dict[str, Array]:
        feeds = {}
        for spec in self.signature.inputs:
            free = (items, *[1] * len(spec.shape))
            shape = [size if size >= 0 else free[at] for at, size in enumerate(spec.shape)]
            feeds[spec.name] = blank(spec.datatype, shape)
        return feeds

    def run(self, feeds: Mapping[str, Array]) -> Sequence[Array]:
        """Return one array per output of the signature.

        Raises:
            Exception: Whatever ONNX Runtime makes of the inputs; its classes share no base.
        """
        outputs: list[Array] = self._session.run(self._names, dict(feeds))
        for place in self._maps:
            outputs[place] = scores(outputs[place])  # type: ignore[arg-type]  # maps until here
        return outputs


def _scores(value: Any) -> TensorSpec:
    return TensorSpec(value.name, "FP32", (-1, -1))


def _spec(value: Any) -> TensorSpec:
    if value.type not in _DATATYPES:
        raise RuntimeError(f"{value.name} is {value.type}, which the protocol cannot carry")
    shape = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in value.shape)
    return TensorSpec(value.name, _DATATYPES[value.type], shape)
