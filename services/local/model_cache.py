"""The folder of models' files that have a URI: each under its SHA-256, within a bound."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

from services.kit.config import Deployment, ModelFile
from services.kit.download import Progress, Source, complete
from services.kit.errors import FailedPrecondition, ResourceExhausted
from services.kit.lock_file import LockFile
from services.kit.package_data import require_sha256
from services.kit.units import BYTES_PER_MIB

_SETTING: Final = "model_cache.max_mib"
_LOCK: Final = ".lock"
_PARTS: Final = ".parts"
_LOCK_POLL_S: Final = 0.2


@contextmanager
def locked(folder: Path, waits: Callable[[str], None]) -> Iterator[None]:
    """Keep other processes from changing a cache.

    Args:
        folder: The cache's; it is made where it is missing.
        waits: Called once with the holder of the lock, where there is one.

    Raises:
        FailedPrecondition: It cannot be written.
    """
    with LockFile(folder / _LOCK, "model_cache.folder") as lock:
        said = False
        while not lock.take():
            if not said:
                waits(lock.holder())
                said = True
            time.sleep(_LOCK_POLL_S)
        yield


class ModelCache:
    """The files of one deployment, and those that earlier ones left. Hold its lock.

    Args:
        deployment: The whole deployment. None of its files gives way to another.
        http: Client for files of web servers.
    """

    def __init__(self, deployment: Deployment, http: httpx.Client) -> None:
        self._settings = deployment.model_cache
        self._http = http
        wanted = [
            network
            for model in deployment.models.values()
            for variant in model.variants.values()
            for _, network in variant.loaded()
            if network.uri
        ]
        self._wanted = {self._settings.path(each) for each in wanted}
        self._wanted |= {self._part(each) for each in wanted}
        for path in filter(Path.is_file, self._wanted):
            os.utime(path)  # its time shows when the file was last named

    def has(self, network: ModelFile) -> bool:
        """Return whether the file is here and has its SHA-256. Reads all of it."""
        path = self._settings.path(network)
        try:
            require_sha256(path, network.sha256)
        except FailedPrecondition:
            return False
        return True

    def fetch(self, network: ModelFile, progress: Progress) -> None:
        """Download a file, or the rest of one; files that no model names are removed for it.

        Raises:
            FailedPrecondition: What came has another SHA-256.
            ResourceExhausted: It has no room within the bound, or on the disk.
            Unavailable: It cannot be had now.
        """
        path, part = self._settings.path(network), self._part(network)
        path.unlink(missing_ok=True)  # damaged
        source = Source(network.uri, self._http)
        complete(source, part, network.sha256, lambda size: self._make_room(part, size), progress)
        part.chmod(0o644)  # for workers of another user
        part.replace(path)

    def _part(self, network: ModelFile) -> Path:
        return self._settings.folder / _PARTS / network.sha256.lower()

    def _make_room(self, part: Path, size_bytes: int) -> None:
        """Remove files that no model names, the longest unused first, until a file has room."""
        bound = int(self._settings.max_mib * BYTES_PER_MIB)
        sizes = {each: each.stat().st_size for each in self._files() if each != part}
        spare = sorted(sizes.keys() - self._wanted, key=lambda each: each.stat().st_mtime)
        over = sum(sizes.values()) + size_bytes - bound
        if over > sum(sizes[each] for each in spare):
            raise ResourceExhausted.at(
                _SETTING,
                f"{self._settings.max_mib:g} MiB have no room for {size_bytes / BYTES_PER_MIB:.1f} "
                "MiB beside the other files that models name",
            )
        for each in spare:
            if over <= 0:
                return
            each.unlink()
            over -= sizes[each]

    def _files(self) -> Iterator[Path]:
        folder = self._settings.folder
        for each in (*folder.glob("*"), *(folder / _PARTS).glob("*")):
            if each.is_file() and each.name != _LOCK:
                yield each
