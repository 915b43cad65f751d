"""A session that is not on the GPU that was requested is refused; one that is begins warm."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnxruntime
import pytest

from services.gpuagent.node_conditions import missing_provider
from services.gpuagent.worker import onnx_engine, providers
from services.gpuagent.worker.onnx_engine import Engine, Signature, TensorSpec, blank
from services.gpuagent.worker.tensors import Array
from tests.support.worker.worker_process import save_model

pytestmark = pytest.mark.skipif(
    providers.CUDA in onnxruntime.get_available_providers(), reason="this is the GPU build"
)


@pytest.mark.parametrize("provider", [providers.CUDA, providers.TENSORRT])
def test_the_cpu_build_is_refused_with_the_command_that_replaces_it(
    tmp_path: Path, provider: str
) -> None:
    with pytest.raises(RuntimeError) as caught:
        Engine(save_model(tmp_path / "m.onnx"), provider)

    assert f"no {provider}: {provider} is not in this build" in str(caught.value)
    assert f"onnxruntime {onnxruntime.__version__}" in str(caught.value)
    assert "pip install 'onnxruntime-gpu[cuda,cudnn]'" in str(caught.value)


def test_a_session_that_fell_back_to_the_cpu_is_refused(tmp_path: Path) -> None:
    """ONNX Runtime itself only logs that."""
    fallen = onnxruntime.InferenceSession(
        save_model(tmp_path / "m.onnx"), providers=[providers.CPU]
    )

    providers.require(providers.CPU, fallen)
    with pytest.raises(RuntimeError, match="no CUDAExecutionProvider"):
        providers.require(providers.CUDA, fallen)


def test_the_agent_learns_it_from_a_process_of_its_own() -> None:
    assert "CUDAExecutionProvider is not in this build" in missing_provider("cuda")


class Runs(Engine):
    """An engine that counts what it is given, and says that a GPU computes."""

    def __init__(self, file: Path, provider: str) -> None:
        super().__init__(file, providers.CPU)
        self.provider = provider
        self.sizes: list[int] = []

    def run(self, feeds: Mapping[str, Array]) -> Sequence[Array]:
        self.sizes.append(len(feeds["index"]))
        return super().run(feeds)


@pytest.mark.parametrize(
    ("provider", "sizes"),
    [
        (providers.CPU, []),
        (providers.CUDA, [4, 1, 2, 3]),
        (providers.TENSORRT, [4, 1]),  # an engine for the range of sizes
    ],
)
def test_a_gpu_has_run_every_size_of_batch_before_the_first_request(
    tmp_path: Path, provider: str, sizes: list[int]
) -> None:
    engine = Runs(save_model(tmp_path / "m.onnx"), provider)
    engine.warm_up(4)
    assert engine.sizes == sizes


def test_a_model_that_refuses_zeros_is_served_and_one_that_takes_long_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warming up is no reason to refuse a model, nor to miss the time for its start."""
    engine = Runs(save_model(tmp_path / "m.onnx"), providers.CUDA)
    monkeypatch.setattr(onnx_engine, "WARM_UP_S", -1.0)
    engine.warm_up(4)
    assert engine.sizes == []
    monkeypatch.undo()

    def refuse(_: object) -> Sequence[Array]:
        raise ValueError("a divisor of zero")

    monkeypatch.setattr(engine, "run", refuse)
    engine.warm_up(4)


def test_blank_inputs_have_the_sizes_that_are_fixed() -> None:
    """Free sizes are 1 but the batch's; texts are empty."""
    inputs = (TensorSpec("image", "FP16", (-1, 3, -1)), TensorSpec("text", "BYTES", (-1, 2)))
    found = blank(Signature(inputs, ()), 5)
    assert found["image"].shape == (5, 3, 1)
    assert found["image"].dtype == "f2"
    assert found["text"].tolist() == [["", ""]] * 5
