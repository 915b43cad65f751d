"""Checks of the machine: driver, GPUs, runtime libraries, MPS. Everything is only read."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import pynvml

from services.cli.doctor.finding import Finding, bad, fine, note
from services.cli.doctor.gpus_together import gpus_together
from services.gpuagent.core.device_port import Permissions
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.gpuagent.node_conditions import missing_provider
from services.kit.config import Deployment
from services.kit.errors import ServiceError
from services.kit.hardware.boards import table_of
from services.kit.process import confinement

_MIG_CONFIG: Final = Path("/proc/driver/nvidia/capabilities/mig/config")
_WITHOUT_GPU: Final = "cores and simulated GPUs work without one"


def machine(
    mps_binary: Path, *, needs_gpu: bool, deployment: Deployment | None = None
) -> Iterator[Finding]:
    """Yield findings on this machine; change nothing.

    Args:
        mps_binary: NVIDIA's control program of MPS, path or name.
        deployment: The deployment, for its variants on several GPUs; None: there is no valid file.
        needs_gpu: A node of the deployment has real GPUs.
    """
    yield from _builds()
    yield _confinement()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        judge = bad if needs_gpu else note
        yield judge("driver", f"NVML does not answer: {error}", f"install NVIDIA's; {_WITHOUT_GPU}")
        return
    try:
        yield from _driver()
        yield from _gpus()
        yield from _refused()
        if deployment is not None:
            yield from gpus_together(deployment)
    finally:
        pynvml.nvmlShutdown()
    for provider in ("cuda", "tensorrt"):
        yield _provider(provider)
    yield _mps(mps_binary)


def _confinement() -> Finding:
    """Return the finding on what keeps a parser of others' files and requests from doing more."""
    if lacking := confinement.missing():
        return note(
            "confinement",
            f"{' and '.join(lacking)} missing: workers and readers of models can do more",
            "; ".join(lacking.values()),
        )
    return fine("confinement", "libseccomp and Landlock")


def _builds() -> Iterator[Finding]:
    """Yield which build of ONNX Runtime is installed; two overwrite each other's files."""
    found = {name: _version(name) for name in ("onnxruntime", "onnxruntime-gpu")}
    here = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    if all(found.values()):
        yield bad(
            "ONNX Runtime",
            f"{here}: two builds in one environment overwrite each other's files",
            "pip uninstall -y onnxruntime onnxruntime-gpu, then install one (docs/real-gpus.md)",
        )
    elif here:
        yield fine("ONNX Runtime", here)
    else:
        yield bad("ONNX Runtime", "not installed", "pip install cinquefoil")


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _driver() -> Iterator[Finding]:
    version = "its version is not known"
    with suppress(pynvml.NVMLError):
        version = pynvml.nvmlSystemGetDriverVersion()
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        version += f", CUDA {cuda // 1000}.{cuda % 1000 // 10}"
    yield fine("driver", version)


def _gpus() -> Iterator[Finding]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        subject = f"GPU {index}"
        try:
            yield from _gpu(subject, pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError as error:
            yield bad(subject, f"NVML: {error}", "nvidia-smi says more; a lost GPU needs a reset")


def _refused() -> Iterator[Finding]:
    """Yield the queries of an agent that the driver refuses, a line for each GPU."""
    with NvmlGpus(permissions=Permissions(granted=False)) as gpus:
        try:
            for gpu in gpus.list():
                with suppress(ServiceError):
                    gpus.meter(gpu.uuid)
        except ServiceError as error:
            yield bad("GPUs", error.message, "nvidia-smi says more")
        for gpu_uuid, queries in gpus.refused().items():
            yield note(
                "GPU queries",
                f"{gpu_uuid}: " + "; ".join(f"{name}: {why}" for name, why in queries.items()),
                "it serves without these figures (GPU_IMPAIRED in docs/conditions.md)",
            )


def _gpu(subject: str, device: Any) -> Iterator[Finding]:
    name, uuid = pynvml.nvmlDeviceGetName(device), pynvml.nvmlDeviceGetUUID(device)
    if table_of(name) is None:
        yield note(
            subject,
            f"{name} ({uuid}) has no table here: its speed and idle power are estimated",
            "measure profiles on it: cinquefoil gpuagent profile",
        )
    else:
        yield fine(subject, f"{name} ({uuid})")
    yield _mig(subject, device)
    if _unless_missing(pynvml.nvmlDeviceGetTotalEnergyConsumption, device) is None:
        yield note(f"{subject} energy", "no counter", "energy is integrated from power samples")
    else:
        yield fine(f"{subject} energy", "counted by the device")
    busy = _unless_missing(pynvml.nvmlDeviceGetComputeRunningProcesses, device) or ()
    if busy:
        pids = ", ".join(str(each.pid) for each in busy)
        yield note(
            f"{subject} processes",
            f"other processes compute on it: {pids}",
            "end them, or leave the GPU out of nodes.<name>.gpus",
        )


def _mig(subject: str, device: Any) -> Finding:
    mode = _unless_missing(pynvml.nvmlDeviceGetMigMode, device)
    subject = f"{subject} MIG"
    if mode is None:
        return note(subject, "not supported", "the GPU serves as a whole, shared by MPS")
    if not mode[0]:
        return note(
            subject,
            "off",
            "set nodes.<name>.allow_mig_mode: true, or as root: nvidia-smi -i <index> -mig 1",
        )
    if os.geteuid() != 0 and not os.access(_MIG_CONFIG, os.R_OK):
        return note(
            subject,
            "on, but this user may not change instances",
            "run the agent as root, or give it the device node of mig/config (docs/rights.md)",
        )
    return fine(subject, "on")


def _unless_missing(read: Callable[[Any], Any], device: Any) -> Any:
    try:
        return read(device)
    except (
        pynvml.NVMLError,  # `_refused` names the queries that an agent needs
        pynvml.NVMLLibraryMismatchError,  # an older driver than nvidia-ml-py knows
    ):
        return None


def _provider(provider: str) -> Finding:
    missing = missing_provider(provider)
    if not missing:
        return fine(provider, "a session can use it")
    if provider == "tensorrt":  # an option
        return note(provider, missing, "only for runtime: {provider: tensorrt}")
    return bad(provider, missing, "docs/real-gpus.md has the commands")


def _mps(binary: Path) -> Finding:
    found = shutil.which(str(binary))
    if found:
        return fine("MPS", found)
    return note(
        "MPS",
        f"no {binary} on the path",
        "it comes with the driver; without it, one process runs per slice",
    )
