"""A worker has run every size of batch before it is ready, where a GPU computes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.gpuagent.worker import app, onnx_engine, providers
from services.gpuagent.worker.onnx_engine import Engine, Signature, TensorSpec
from services.gpuagent.worker.tensors import Array
from services.kit.clock import RealClock
from tests.support.worker.worker_process import save_model, worker_spec


class Counted(Engine):
    """An engine that counts what it runs, and says that a GPU computes; `most` items fit."""

    most = 100

    def __init__(self, file: Path, provider: str, threads: int = 1) -> None:
        super().__init__(file, providers.CPU, threads)
        self.provider = provider
        self.sizes: list[int] = []

    def prove_batches(self, batch_size: int) -> None:
        """Run nothing: what is counted is the warm-up's."""

    def run(self, feeds: Mapping[str, Array]) -> Sequence[Array]:
        if len(feeds["index"]) > self.most:
            raise RuntimeError("out of memory")
        self.sizes.append(len(feeds["index"]))
        return super().run(feeds)


@pytest.mark.parametrize(
    ("provider", "sizes"),
    [
        (providers.CPU, []),
        (providers.CUDA, [1, 2, 3, 4]),
        (providers.TENSORRT, [1, 4]),  # an engine for the range of sizes
    ],
)
async def test_a_worker_is_ready_once_every_size_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, sizes: list[int]
) -> None:
    spec = worker_spec(tmp_path, save_model(tmp_path / "m.onnx"), provider=provider)
    loaded: list[Counted] = []

    def load(file: Path, provider: str, threads: int) -> Engine:
        loaded.append(Counted(file, provider, threads))
        return loaded[-1]

    monkeypatch.setattr(app, "Engine", load)
    async with app._model(spec, RealClock()):
        assert spec.batch_size == 4
        assert [engine.sizes for engine in loaded] == [sizes]


def test_a_size_that_fails_and_those_above_it_begin_cold(tmp_path: Path) -> None:
    """The model is not refused for it: smaller batches may be all that come."""
    engine = Counted(save_model(tmp_path / "m.onnx"), providers.CUDA)
    engine.most = 2
    with capture_logs() as logs:
        engine.warm_up(4)

    assert engine.sizes == [1, 2]
    assert [(each["from_items"], each["why"]) for each in logs] == [
        (3, "RuntimeError('out of memory')")
    ]


def test_warming_up_ends_before_the_time_for_a_start_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_engine, "WARM_UP_S", -1.0)
    engine = Counted(save_model(tmp_path / "m.onnx"), providers.CUDA)
    with capture_logs() as logs:
        engine.warm_up(4)

    assert engine.sizes == []
    assert [each["from_items"] for each in logs] == [1]


def test_blank_inputs_have_the_sizes_that_are_fixed(tmp_path: Path) -> None:
    """Free sizes are 1 but the batch's; texts are empty."""
    engine = Counted(save_model(tmp_path / "m.onnx"), providers.CUDA)
    inputs = (TensorSpec("image", "FP16", (-1, 3, -1)), TensorSpec("text", "BYTES", (-1, 2)))
    engine.signature = Signature(inputs, ())

    found = engine._blank(5)
    assert found["image"].shape == (5, 3, 1)
    assert found["image"].dtype == "f2"
    assert found["text"].tolist() == [["", ""]] * 5
