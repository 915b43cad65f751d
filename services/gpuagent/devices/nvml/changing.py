"""What NVML changes on one GPU in more than one call. Functions let NVML's errors through."""

from __future__ import annotations

from ctypes import byref
from typing import Any

import pynvml

from services.gpuagent.devices.nvml import reading
from services.kit.mig import Placement, SliceKind


def create(device: Any, kind: SliceKind, placement: Placement) -> None:
    """Create a GPU instance and the compute instance that takes all of it, or neither."""
    where = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, kind.memory_slices)
    instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
        device, kind.gpu_instance_profile_id, byref(where)
    )
    try:
        create_compute(instance, kind)
    except pynvml.NVMLError:
        pynvml.nvmlGpuInstanceDestroy(instance)
        raise


def create_compute(instance: Any, kind: SliceKind) -> None:
    """Create the compute instance that takes all of a GPU instance."""
    profile_id = reading.full_compute_profile_id(instance, kind.compute_slices)
    pynvml.nvmlGpuInstanceCreateComputeInstance(instance, profile_id)


def destroy(instance: Any) -> None:
    """Destroy a GPU instance; its compute instances first, as nvml.h demands."""
    for compute in reading.compute_instances(instance):
        pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)


def lock_clock(device: Any, clock_mhz: int) -> None:
    """Lock the SM clock at the supported one nearest to it, MHz."""
    pynvml.nvmlDeviceSetGpuLockedClocks(device, clock_mhz, clock_mhz)


def set_mig_mode(device: Any, *, enabled: bool) -> None:
    """Request a MIG mode; a request for the one in force withdraws what is pending.

    Raises:
        NVMLError: It is not in force yet, and why; NVML returns that as the call's value.
    """
    if reading.mig_mode(device) == (enabled, enabled):
        return
    status = pynvml.nvmlDeviceSetMigMode(device, int(enabled))
    if status != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(status)
