"""Work on documents beside the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

R = TypeVar("R")

_LARGE_BYTES: Final = 2**18
_reader: Final = ThreadPoolExecutor(1, thread_name_prefix="json")
"""One thread: more would only wait for the interpreter, and the event loop with them."""


async def off_loop(size: int, read: Callable[[], R]) -> R:
    """Return what `read` returns, called beside the event loop where that takes long.

    Args:
        size: Bytes that are read.
        read: Reads them; no call in it may hold the interpreter for long.
    """
    if size < _LARGE_BYTES:
        return read()
    return await asyncio.get_running_loop().run_in_executor(_reader, read)
