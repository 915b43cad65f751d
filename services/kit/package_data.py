"""Data files of installed packages, for example weights: read by path, with nothing imported."""

import hashlib
from importlib.machinery import PathFinder
from pathlib import Path

from services.kit.errors import FailedPrecondition


def package_file(resource: str, sha256: str) -> Path:
    """Return the path of a package's file whose content is the expected one.

    The package's code is not executed: it is found on the path of imports, but not imported. Reads
    the whole file: blocks.

    Args:
        resource: "package/file", the package by its name in imports.
        sha256: Expected SHA-256 of the file, hexadecimal.

    Raises:
        FailedPrecondition: There is no such package or file, or its content differs.
    """
    package, _, within = resource.partition("/")
    spec = PathFinder.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FailedPrecondition(f"there is no Python package {package!r} to take {within} from")
    file = Path(spec.submodule_search_locations[0]) / within
    try:
        require_sha256(file, sha256)
    except FailedPrecondition as error:
        raise FailedPrecondition(f"package {package}: {error}") from error
    return file


def require_sha256(file: Path, sha256: str) -> None:
    """Read a file and compare its SHA-256 with the expected one, hexadecimal. Blocks.

    Raises:
        FailedPrecondition: They differ, or the file cannot be read.
    """
    try:
        with file.open("rb") as data:
            found = hashlib.file_digest(data, "sha256").hexdigest()
    except OSError as error:
        raise FailedPrecondition(f"{file}: {error.strerror}") from error
    if found != sha256.lower():
        raise FailedPrecondition(
            f"{file} is damaged or another version: its SHA-256 is {found}, expected {sha256}"
        )
