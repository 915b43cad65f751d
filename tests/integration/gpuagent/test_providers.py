"""A session that is not on the GPU that was requested is refused, and says what is missing."""

from pathlib import Path

import onnxruntime
import pytest

from services.gpuagent.node_conditions import missing_provider
from services.gpuagent.worker import providers
from services.gpuagent.worker.onnx_engine import Engine
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
