"""Slices of the servers of a pool, as profiles need them."""

from services.kit.config import ServerPool
from services.kit.hardware import gpu_types
from services.kit.mig import WHOLE
from services.kit.profiles.core.profile import SliceShape


def shape_of(pool: ServerPool, gpus: int) -> SliceShape:
    """Return the slice that each server of a pool has, or the whole GPUs together.

    Args:
        pool: The pool; its GPU type and slice are known ones.
        gpus: GPUs of each server.
    """
    table = gpu_types.load(pool.gpu)
    geometry = table.uncut if pool.slice == WHOLE else table.geometry
    kind = geometry.kind(pool.slice)
    return SliceShape(
        gpu=table.name,
        profile=kind.name,
        compute_slices=kind.compute_slices,
        sm_count=gpus * kind.sm_count,
        gpu_sm_count=table.sm_count,
        memory_bytes=gpus * kind.memory_bytes,
        context_power_w=table.context_power_w,
        max_power_w=table.max_power_w,
        performance=table.performance,
    )
