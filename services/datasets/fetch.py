"""Downloads files of data sets into the folder of data, or copies them from another folder.

Only a file with the catalog's SHA-256 ever gets its name.
"""

import hashlib
from pathlib import Path

import httpx

from services.datasets.catalog import DataFile, Original
from services.datasets.conversions import converted
from services.kit.download import Progress, Source, complete
from services.kit.errors import FailedPrecondition, Unavailable
from services.kit.package_data import require_sha256
from services.kit.whole_file import replacing


def present(file: DataFile, folder: Path) -> bool:
    """Return whether the folder has this very file. Reads all of it."""
    path = folder / file.path
    return (
        path.is_file()
        and path.stat().st_size == file.size_bytes
        and hashlib.sha256(path.read_bytes()).hexdigest() == file.sha256
    )


def copy(file: DataFile, source: Path, folder: Path) -> bool:
    """Copy a file from a folder that is laid out as the folder of data is.

    Returns:
        Whether the source has it.

    Raises:
        FailedPrecondition: Its content is another.
    """
    found = source / file.path
    if not found.is_file():
        return False
    require_sha256(found, file.sha256)
    _place(file, found.read_bytes(), folder)
    return True


def download(file: DataFile, folder: Path, http: httpx.Client, progress: Progress) -> None:
    """Download a file, and convert it where its publishers give it another form.

    Raises:
        FailedPrecondition: The SHA-256 of the download, or of its conversion, is not the catalog's.
        Unavailable: A server does not answer, or refuses.
    """
    parts = [_part(folder, each) for each in file.downloads]
    for original, part in zip(file.downloads, parts, strict=True):
        _complete(original, part, http, progress)
    contents = [part.read_bytes() for part in parts]
    try:
        content = converted(file.conversion, contents) if file.conversion else contents[0]
    except (ValueError, KeyError) as error:
        raise FailedPrecondition(f"{file.path} cannot be converted: {error!r}") from error
    _place(file, content, folder)


def remove_parts(folder: Path) -> None:
    """Remove downloads from which every file was made."""
    for part in (folder / ".parts").glob("*"):
        part.unlink()


def _part(folder: Path, original: Original) -> Path:
    """Return where a download lies: by content, so that two files share an original."""
    return folder / ".parts" / original.sha256


def _complete(original: Original, part: Path, http: httpx.Client, progress: Progress) -> None:
    def room(size_bytes: int) -> None:
        if size_bytes > original.size_bytes:
            raise FailedPrecondition(f"{original.url} is longer than {original.size_bytes} bytes")

    source = Source(original.url, http)
    size = original.size_bytes
    try:
        complete(source, part, original.sha256, room, progress, size_bytes=size)
    except Unavailable as error:
        raise error.because(". A machine without a network takes files by --from FOLDER") from error


def _place(file: DataFile, content: bytes, folder: Path) -> None:
    """Write a file under its name, whole or not at all."""
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        raise FailedPrecondition(f"{file.path}: SHA-256 {found}, expected {file.sha256}")
    path = folder / file.path
    with replacing(path, durable=True) as draft:
        draft.write_bytes(content)
