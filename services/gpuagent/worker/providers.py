"""ONNX Runtime's execution providers on this machine, and what is missing where one does not work.

`python -m services.gpuagent.worker.providers CUDAExecutionProvider` prints what is missing, or
nothing. The agent and `cinquefoil doctor` run it so, since a provider's libraries stay in the
process that loaded them.
"""

import contextlib
import ctypes
import importlib.metadata
import io
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import onnxruntime as ort

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
TENSORRT: Final = "TensorrtExecutionProvider"

_ON_CUDA: Final = (CUDA, {"cudnn_conv_algo_search": "HEURISTIC"})
"""ONNX Runtime's default tries all of cuDNN's algorithms: 36 to 460 ms for each new shape of input
on an H100, where this takes 22 to 59. Nine later runs took 8 % less to 13 % more, 2 % in the mean
(docs/measurements/gpuagent.md)."""

CHAINS: Final[Mapping[str, Sequence[str | tuple[str, Mapping[str, str]]]]] = {
    CPU: (CPU,),
    CUDA: (_ON_CUDA, CPU),
    TENSORRT: (TENSORRT, _ON_CUDA, CPU),
}
"""Providers with options, each with the fallbacks for operators that it lacks."""

_LIBRARIES: Final = {
    CUDA: "libonnxruntime_providers_cuda.so",
    TENSORRT: "libonnxruntime_providers_tensorrt.so",
}
_SHARED: Final = "libonnxruntime_providers_shared.so"
_INSTALL: Final = (
    "pip uninstall -y onnxruntime onnxruntime-gpu && pip install 'onnxruntime-gpu[cuda,cudnn]'"
)


def preload(provider: str) -> None:
    """Load the CUDA and cuDNN libraries that wheels brought, before the first session."""
    if provider == CPU or not hasattr(ort, "preload_dlls"):
        return
    with contextlib.redirect_stdout(io.StringIO()):  # `missing` says it better
        ort.preload_dlls()


def missing(provider: str) -> str:
    """Return the reason why a provider does not work, naming the library; "": it works.

    Args:
        provider: ONNX Runtime's name of it.
    """
    found = ort.get_available_providers()
    if provider not in found:
        return f"{provider} is not in this build of ONNX Runtime ({_builds()}); {_INSTALL}"
    library = _LIBRARIES.get(provider)
    if library is None:
        return ""
    preload(provider)
    folder = Path(ort.__file__).parent / "capi"
    try:
        for name in (_SHARED, library):
            ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        # The linker names the library that it lacks, for example libcudnn.so.9.
        return f"{provider} cannot be loaded: {error}"
    return ""


def require(provider: str, session: ort.InferenceSession) -> None:
    """Check that a session uses the provider that was requested: ONNX Runtime only logs it else.

    Raises:
        RuntimeError: It does not; the message names what is missing.
    """
    used: Sequence[str] = session.get_providers()
    if provider not in used:
        why = missing(provider) or f"ONNX Runtime uses {', '.join(used)} instead"
        raise RuntimeError(f"no {provider}: {why}")


def _builds() -> str:
    """Return which builds are installed; two of them overwrite each other's files."""
    found = []
    for name in ("onnxruntime", "onnxruntime-gpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return " over ".join(found) or "of unknown origin"


if __name__ == "__main__":
    sys.stdout.write(missing(sys.argv[1]))
