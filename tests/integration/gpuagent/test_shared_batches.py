"""No answer depends on the requests that came at the same time, whatever a network does."""

import itertools
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from inference import grpc_service_pb2 as oip
from services.gpuagent.worker import tensors
from services.gpuagent.worker.core.batcher import Batcher, Queued
from services.gpuagent.worker.model_port import Text
from services.gpuagent.worker.onnx_engine import Engine
from services.gpuagent.worker.onnx_model import LocalModel
from services.gpuagent.worker.providers import CPU
from services.gpuagent.worker.tensor_messages import Inference
from services.kit.errors import ServiceError
from services.kit.operators import batch_invariance
from tests.support.worker.batch_families import HONEST, MIXING, calling_itself, save

BATCH_SIZE = 8
BY_CHANCE = ("chance", "batch normalisation in training")
"""Families whose answers differ from run to run, alone, too."""


def proven(file: Path) -> Engine:
    engine = Engine(file, CPU)
    engine.prove_batches(BATCH_SIZE)
    return engine


@pytest.mark.parametrize("name", MIXING)
def test_items_that_could_mix_share_no_batch(tmp_path: Path, name: str) -> None:
    engine = proven(save(tmp_path / "m.onnx", MIXING[name]))

    assert not engine.signature.batches
    assert engine.signature.alone


@pytest.mark.parametrize("name", HONEST)
def test_items_that_cannot_mix_share_batches(tmp_path: Path, name: str) -> None:
    """int8, float16 and near ties are no mixing; and a proof takes little of a start."""
    began_s = time.process_time()
    engine = proven(save(tmp_path / "m.onnx", HONEST[name]))

    assert engine.signature.alone == ""
    assert engine.signature.batches
    assert time.process_time() - began_s < 2 * batch_invariance.PROOF_S


def test_functions_and_categories_of_a_file_are_known(tmp_path: Path) -> None:
    """A function of the file finds things; an encoder takes no text but its categories."""
    from skl2onnx import to_onnx  # noqa: PLC0415 - each test process imports this module
    from sklearn.preprocessing import OneHotEncoder  # noqa: PLC0415

    found = proven(calling_itself(tmp_path / "f.onnx"))
    words = np.array([["red"], ["green"], ["blue"]], object)
    encoder = to_onnx(OneHotEncoder(handle_unknown="error").fit(words), words)
    (tmp_path / "e.onnx").write_bytes(encoder.SerializeToString())

    assert "NonZero" in found.signature.alone
    assert proven(tmp_path / "e.onnx").signature.alone == ""


def test_a_network_that_takes_long_is_tried_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_invariance, "PROOF_S", 0.0)
    engine = Counted(save(tmp_path / "m.onnx", HONEST["a network"]), CPU)
    engine.prove_batches(BATCH_SIZE)

    assert engine.signature.batches
    assert engine.items <= 7


class Counted(Engine):
    """An engine that counts. Attributes: items (that it ran)."""

    items = 0

    def run(self, feeds: dict[str, tensors.Array]) -> Sequence[tensors.Array]:  # type: ignore[override]
        self.items += len(next(iter(feeds.values())))
        return super().run(feeds)


# ---- answers of many clients at once -----------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Waiting(Queued):
    request: Inference


def request(engine: Engine, random: np.random.Generator) -> bytes:
    """A request of one or two items, at the border of what the families find."""
    made, items = oip.ModelInferRequest(model_name="m"), int(random.integers(1, 3))
    for spec in engine.signature.inputs:
        shape = [items, *(size if size > 0 else 3 for size in spec.shape[1:])]
        made.inputs.add(name=spec.name, datatype=spec.datatype, shape=shape)
        if spec.datatype == "BYTES":
            array: tensors.Array = random.choice(np.array(["a", "b", "", "é"], object), shape)
        elif spec.datatype.startswith("FP"):
            array = random.standard_normal(shape) * 10.0 ** random.integers(-1, 6)
        else:
            array = random.integers(0, 2, shape)
        made.raw_input_contents.append(tensors.encode(array, spec.datatype))
    return made.SerializeToString()


async def mixed_answers(file: Path, count: int, seed: int) -> int:
    """Return how many of `count` answers differ from those to the same requests alone."""
    engine, random, mixed = proven(file), np.random.default_rng(seed), 0
    batcher = Batcher[Waiting](BATCH_SIZE, 2 * BATCH_SIZE)
    with ThreadPoolExecutor(1) as thread:
        model = LocalModel(engine, thread)
        for _ in range(math.ceil(count / BATCH_SIZE)):
            for _ in range(BATCH_SIZE):
                read = model.read(request(engine, random), math.inf)
                batcher.add(Waiting(read.kind, read.items, math.inf, read))
            while batcher.queue:
                batch = [each.request for each in batcher.take(0.0).batch]
                try:
                    answers = list(await model.compute(batch, unused))
                except (ValueError, RuntimeError, ort.capi.onnxruntime_pybind11_state.Fail):
                    continue  # each runs alone then
                for one, answer in zip(batch, answers, strict=True):
                    (alone,) = await model.compute([one], unused)
                    mixed += not same(answer, alone)
    return mixed


async def unused(place: int, part: bytes) -> bool:
    raise NotImplementedError


def same(one: bytes | Text | ServiceError, two: bytes | Text | ServiceError) -> bool:
    """Return whether answers are the same, but for rounding."""
    if not (isinstance(one, bytes) and isinstance(two, bytes)):
        return type(one) is type(two)
    a, b = oip.ModelInferResponse.FromString(one), oip.ModelInferResponse.FromString(two)
    if [list(each.shape) for each in a.outputs] != [list(each.shape) for each in b.outputs]:
        return False
    pairs = zip(a.outputs, a.raw_output_contents, b.raw_output_contents, strict=True)
    for tensor, left, right in pairs:
        if left == right:
            continue
        if not tensor.datatype.startswith("FP"):
            return False
        x, y = (
            tensors.decode(each, tensor.datatype, tensor.shape, field="") for each in (left, right)
        )
        scale = np.nanmax(np.abs(x), initial=1e-30)
        if not np.allclose(x / scale, y / scale, rtol=0, atol=1e-2, equal_nan=True):
            return False
    return True


@pytest.mark.parametrize("name", [name for name in MIXING if name not in BY_CHANCE])
async def test_no_answer_is_mixed_with_another(tmp_path: Path, name: str) -> None:
    """400 of each family, as they came at once; the note on this has 10^5."""
    assert await mixed_answers(save(tmp_path / "m.onnx", MIXING[name]), 400, seed=1) == 0


async def test_what_is_compared_would_show_mixed_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the proof, answers of most families are mixed."""
    monkeypatch.setattr(Engine, "prove_batches", lambda *_: None)
    found = {
        name: await mixed_answers(save(tmp_path / f"{number}.onnx", text), 100, seed=1)
        for number, (name, text) in zip(itertools.count(), MIXING.items(), strict=False)
    }

    assert sum(count > 0 for count in found.values()) >= 12, found
