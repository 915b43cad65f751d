"""Contents of files: in a folder, or wherever fsspec can write (s3://, gs://)."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import fsspec

from services.kit.errors import FailedPrecondition, NotFound, ResourceExhausted, Unavailable

T = TypeVar("T")

_SETTING: Final = "batch.files"
_PIECE_BYTES: Final = 256 * 2**10
_MIB: Final = 2**20


class Contents:
    """Reads and writes contents by file id.

    Args:
        place: `batch.files`.
        min_free_bytes: Room below which nothing new is written to a folder.

    Raises:
        FailedPrecondition: The place cannot be.
    """

    def __init__(self, place: str, min_free_bytes: int) -> None:
        try:
            self._system, self._root = fsspec.core.url_to_fs(place)
        except (ImportError, ValueError) as error:
            raise FailedPrecondition.at(_SETTING, f"{place}: {error}") from error
        self._folder = Path(self._root) if "file" in _protocols(self._system) else None
        self._min_free_bytes = min_free_bytes

    async def prepare(self) -> None:
        """Make the folder.

        Raises:
            Unavailable: It cannot be made.
        """
        if self._folder is not None:
            await self._do(lambda: self._folder.mkdir(parents=True, exist_ok=True, mode=0o700))  # type: ignore[union-attr]

    def check_room(self, size_bytes: int = 0) -> None:
        """Refuse a new file where the disk would be too full.

        Raises:
            ResourceExhausted: It would be.
        """
        if self._folder is None:
            return
        with suppress(OSError):
            free = shutil.disk_usage(self._folder).free - size_bytes
            if free < self._min_free_bytes:
                raise ResourceExhausted(
                    f"the disk of batch.files has {max(free, 0) / _MIB:.0f} MiB left; "
                    f"batch.min_free_mib keeps {self._min_free_bytes / _MIB:.0f}",
                    reason="DISK_FULL",
                )

    @asynccontextmanager
    async def writing(self, id_: str) -> AsyncIterator[Callable[[bytes], Any]]:
        """Yield a function that appends to a new file, which is there once the block succeeds.

        Raises:
            ResourceExhausted, Unavailable: It cannot be written.
        """
        path, draft = self._path(id_), self._path(f"{id_}.draft")
        file = await self._do(lambda: self._system.open(draft, "wb", block_size=8 * _MIB))

        async def append(data: bytes) -> None:
            await self._do(lambda: file.write(data))

        try:
            yield append
            await self._do(file.close)
            await self._do(lambda: self._system.mv(draft, path))
        except BaseException:
            with suppress(Exception):
                await asyncio.to_thread(self._drop, file, draft)
            raise

    def _drop(self, file: Any, draft: str) -> None:
        with suppress(Exception):
            file.close()
        self._system.rm(draft)

    async def size(self, id_: str) -> int:
        """Return the size of a content, bytes."""
        return int(await self._do(lambda: self._system.size(self._path(id_))))

    async def read(self, id_: str, offset: int, size: int) -> bytes:
        """Return some bytes of a content.

        Raises:
            NotFound: It is gone.
            Unavailable: It cannot be read.
        """
        found = await self._do(
            lambda: self._system.cat_file(self._path(id_), start=offset, end=offset + size)
        )
        return bytes(found)

    async def chunks(self, id_: str) -> AsyncIterator[bytes]:
        """Yield a content, some at a time."""
        offset = 0
        while data := await self.read(id_, offset, _PIECE_BYTES):
            yield data
            offset += len(data)
            if len(data) < _PIECE_BYTES:
                return

    async def delete(self, id_: str) -> None:
        """Delete a content; one that is gone already is no error."""
        with suppress(NotFound):
            await self._do(lambda: self._system.rm(self._path(id_)))

    async def drafts(self) -> None:
        """Delete what interrupted uploads left; no other service may be writing."""
        if self._folder is not None:
            for each in self._folder.glob("*.draft"):
                with suppress(OSError):
                    each.unlink()

    def _path(self, id_: str) -> str:
        return f"{self._root}/{id_}"

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except FileNotFoundError as error:
            raise NotFound("the file's content is gone", reason="NO_SUCH_FILE") from error
        except OSError as error:
            kind = ResourceExhausted if error.errno in _FULL else Unavailable
            raise kind(f"{_SETTING}: {error.strerror or error}") from error


_FULL: Final = (28, 122)
"""ENOSPC, EDQUOT."""


def _protocols(system: Any) -> Iterator[str]:
    found = system.protocol
    yield from (found,) if isinstance(found, str) else found
