"""NVML's return codes, and how the simulated hardware reports them inside Python."""

from enum import IntEnum


class Code(IntEnum):
    """The nvmlReturn_t values that the simulated library answers (nvml.h)."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    IN_USE = 19
    MEMORY = 20
    INSUFFICIENT_RESOURCES = 23
    ARGUMENT_VERSION_MISMATCH = 25
    UNKNOWN = 999


_TEXTS: dict[int, str] = {
    Code.GPU_IS_LOST: "GPU is lost",
    Code.IN_USE: "In use by another client",
    Code.NO_PERMISSION: "Insufficient Permissions",
    Code.UNKNOWN: "Unknown Error",
}


class Fault(Exception):
    """A call that the hardware refuses.

    Attributes:
        code: What NVML would return.
    """

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


def describe(code: int) -> str:
    """Return what nvmlErrorString says of a code."""
    known = {int(entry): entry.name.replace("_", " ").title() for entry in Code}
    return {**known, **_TEXTS}.get(code, "Unknown Error")
