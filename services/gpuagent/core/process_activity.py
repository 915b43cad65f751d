"""Processes that compute on a GPU."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessActivity:
    """A process with a CUDA context on one simulated GPU.

    Attributes:
        pid: Its number.
        slice_uuid: The MIG device that it runs on, or the GPU where that is not cut.
        busy_s: Time in which its kernels ran, since some moment, s; it only grows.
        memory_bytes: Memory that it holds; None: the driver does not say, as in containers.
        running: Whether one of its kernels runs at this moment.
    """

    pid: int
    slice_uuid: str
    busy_s: float
    memory_bytes: int | None = None
    running: bool = False
