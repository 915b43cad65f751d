"""Settings of memory allocation and garbage collection."""

import ctypes
import gc
from typing import Final

_M_TRIM_THRESHOLD: Final = -1  # malloc.h of the GNU C library
_M_MMAP_THRESHOLD: Final = -3

_TRIM_BYTES: Final = 64 * 2**20
_MMAP_BYTES: Final = 32 * 2**20  # maximum of the library

_YOUNG, _OLDER = 20_000, 20  # objects; generations


def keep_large_blocks() -> None:
    """Make malloc keep up to 64 MiB of freed memory, and reuse it for blocks up to 32 MiB.

    Otherwise each message of some hundred kB takes pages from the kernel, which clears them, and
    returns them at once (docs/measurements/router.md). No effect without the GNU C library.

    Source: mallopt(3).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def collect_rarely() -> None:
    """Exclude existing objects from garbage collection, and collect new ones less often.

    Reference counting frees nearly all objects of a request; collecting every 700 objects took the
    router 6 to 14 % of its time (docs/measurements/router.md). To be called after all imports,
    which leave only some 40 unreachable objects in 150 000. The process also ends 0.1 s of CPU
    time faster, without a last collection of all modules.
    """
    gc.freeze()
    gc.set_threshold(_YOUNG, _OLDER, _OLDER)
    gc.enable()  # services start with it disabled
