"""How the process holds memory."""

from __future__ import annotations

import ctypes
from typing import Final

_M_TRIM_THRESHOLD: Final = -1  # malloc.h of the GNU C library
_M_MMAP_THRESHOLD: Final = -3

_TRIM_BYTES: Final = 64 * 2**20
_MMAP_BYTES: Final = 32 * 2**20  # the most that the library takes


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
