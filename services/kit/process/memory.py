"""How the process holds memory."""

from __future__ import annotations

import ctypes
import gc
from typing import Final

_M_TRIM_THRESHOLD: Final = -1  # malloc.h of the GNU C library
_M_MMAP_THRESHOLD: Final = -3

_TRIM_BYTES: Final = 64 * 2**20
_MMAP_BYTES: Final = 32 * 2**20  # the most that the library takes

_YOUNG, _OLDER = 20_000, 20  # objects; generations


def keep_large_blocks() -> None:
    """Have malloc keep up to 64 MiB of freed memory, and take blocks up to 32 MiB from it.

    Otherwise messages of some hundred kB take pages from the kernel, which clears them, and give
    them back at once (docs/measurements/router.md). Does nothing where the C library is not GNU's.

    Source: mallopt(3).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def collect_seldom() -> None:
    """Have the garbage collector pass over what exists already, and look at new objects less often.

    Reference counts free nearly all that a request leaves; to look for cycles every 700 objects
    took the router 6 to 14 % of its time (docs/measurements/router.md). For when all is imported,
    which leaves no cycles to speak of: a last look would find some 40 objects in 150 000. Ending
    is faster too, by the 0.1 s of CPU that it takes to look through all modules for the last time.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG, _OLDER, _OLDER)
    gc.enable()  # a process that starts often imports without it
