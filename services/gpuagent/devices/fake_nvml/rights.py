"""What the caller's process may do, as the kernel sees it."""

from __future__ import annotations

from enum import Flag, auto


class Right(Flag):
    """Rights that NVML requires; reading a whole GPU needs none of them.

    Attributes:
        MONITOR: The device node of mig/monitor: look at MIG instances.
        CONFIG: The device node of mig/config: look at them, create and destroy them.
        ADMIN: Root or CAP_SYS_ADMIN: all of that ("you implicitly have access to all
            nvidia-capabilities", MIG user guide), MIG mode, clocks, power limit, compute mode.
    """

    MONITOR = auto()
    CONFIG = auto()
    ADMIN = auto()


UNPRIVILEGED = Right(0)
ROOT = Right.MONITOR | Right.CONFIG | Right.ADMIN
MIG_CHANGE = Right.CONFIG | Right.ADMIN
MIG_READ = Right.MONITOR | MIG_CHANGE
"""Any of them is enough. nvml.h says "privileged user" of reading and changing instances alike;
that mig/monitor is enough for reading is inferred from its name."""


def permits(held: Right, needed: Right) -> bool:
    """Return whether a process that holds `held` may make a call that takes any of `needed`."""
    return not needed or bool(held & needed)
