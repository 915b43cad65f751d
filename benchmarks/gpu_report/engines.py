"""Engines: the suite's own on CUDA, or PyTorch where ONNX Runtime has no GPU build."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.gpu_report.networks import ConvNet, onnx_model, torch_model

Images = np.ndarray[Any, np.dtype[np.float32]]
Run = Callable[[Images], Images]
"""Computes a batch, and returns when its scores are in the memory of the host."""

Open = Callable[[ConvNet], Run]


def onnx_runtime(provider: str) -> Open:
    """Return the suite's own engine; the session must use `provider`.

    Raises:
        ImportError: ONNX Runtime, or onnx, is not installed.
        RuntimeError: The provider cannot be used; the message names what is missing.
    """
    import onnx as _  # noqa: F401, PLC0415 - the border: not installed is an answer

    from services.gpuagent.worker import providers  # noqa: PLC0415
    from services.gpuagent.worker.onnx_engine import Engine  # noqa: PLC0415

    why = providers.missing(provider)
    if why:
        raise RuntimeError(why)

    def open_network(network: ConvNet) -> Run:
        with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
            Path(file.name).write_bytes(onnx_model(network))
            engine = Engine(Path(file.name), provider)
        return lambda images: engine.run({"image": images})[0]

    return open_network


def pytorch() -> Open:
    """Return PyTorch on its first CUDA device, in float32 with TF32 as ONNX Runtime has it.

    Raises:
        ImportError: PyTorch is not installed.
        RuntimeError: PyTorch sees no GPU.
    """
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch sees no CUDA device")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True

    def open_network(network: ConvNet) -> Run:
        model = torch_model(network)

        def run(images: Images) -> Images:
            with torch.inference_mode():
                scores: Images = model(torch.from_numpy(images).cuda()).cpu().numpy()
            return scores

        return run

    return open_network


def available() -> tuple[str, Open | None, list[str]]:
    """Return the first engine that computes on the GPU, and why others do not.

    Returns:
        Its name, how it opens a network (None: there is none), and a sentence per other engine.
    """
    refused: list[str] = []
    for name, make in _ENGINES:
        try:
            return name, make(), refused
        except (ImportError, RuntimeError) as error:
            refused.append(f"{name}: {error}")
    return "none", None, refused


_ENGINES: Final[tuple[tuple[str, Callable[[], Open]], ...]] = (
    ("ONNX Runtime, CUDA", lambda: onnx_runtime("CUDAExecutionProvider")),
    ("PyTorch", pytorch),
)
