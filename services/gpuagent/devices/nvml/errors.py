"""NVML's errors as ours, in one place."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import pynvml

from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ServiceError,
    Unavailable,
)

_CLASSES: dict[int, type[ServiceError]] = {
    pynvml.NVML_ERROR_INVALID_ARGUMENT: InvalidArgument,
    pynvml.NVML_ERROR_NOT_FOUND: NotFound,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: NotFound,
    pynvml.NVML_ERROR_NO_PERMISSION: PermissionDenied,
    pynvml.NVML_ERROR_IN_USE: FailedPrecondition,
    pynvml.NVML_ERROR_NOT_SUPPORTED: FailedPrecondition,
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: FailedPrecondition,
    pynvml.NVML_ERROR_RESET_REQUIRED: FailedPrecondition,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: FailedPrecondition,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: FailedPrecondition,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: FailedPrecondition,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: FailedPrecondition,
}
"""Classes by code; any other code may be transient: Unavailable."""

_HINTS: dict[int, str] = {
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "; it needs root or CAP_SYS_ADMIN, in a container also NVIDIA_MIG_CONFIG_DEVICES=all (only "
        "to read MIG slices: NVIDIA_MIG_MONITOR_DEVICES=all); see docs/rights.md"
    ),
    pynvml.NVML_ERROR_GPU_IS_LOST: "; it has fallen off the bus: reset it or reboot",
    pynvml.NVML_ERROR_IN_USE: "; a process or an instance still uses it",
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: "; another slice takes its place",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "; is the NVIDIA driver installed?",
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "; the NVIDIA driver is too old",
}


LOST = "NVML_GPU_IS_LOST"
"""Reason of the error of a GPU that has fallen off the bus."""


def query_of(error: pynvml.NVMLError) -> str:
    """Return the C function that failed, for example "nvmlDeviceGetMemoryInfo"; "": not known."""
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    return next((name for name in reversed(names) if name.startswith("nvml")), "")


def spoken(error: pynvml.NVMLError) -> str:
    """Return NVML's words, with a hint where there is one."""
    return f"{error}{_HINTS.get(error.value, '')}"


@contextmanager
def translated(doing: str, field: str = "") -> Iterator[None]:
    """Turn NVML's errors inside the block into service errors.

    Args:
        doing: What the block does, for the message: "create 3g.20gb@4 on GPU-...".
        field: The request's field that is to blame for a wrong argument.

    Raises:
        ServiceError: The class that fits the code; the NVML error is its cause.
    """
    try:
        yield
    except pynvml.NVMLError as error:
        found = _CLASSES.get(error.value, Unavailable)
        reason = type(error).__name__.removeprefix("NVMLError_")
        query = query_of(error)
        raise found(
            f"cannot {doing}: {query}{query and ': '}{spoken(error)}",
            reason="NVML_" + "".join(f"_{c}" if c.isupper() else c.upper() for c in reason)[1:],
            field=field if found in (InvalidArgument, NotFound) else "",
        ) from error
