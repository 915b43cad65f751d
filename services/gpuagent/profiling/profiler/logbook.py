"""Measurements so far, on disk: one line per point, written before the next one begins.

The first line is the machine. A line that was being written when the machine lost its power is cut
off when the book is opened again.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Final

from services.kit.errors import FailedPrecondition
from services.kit.profiles.core.measurement import Fingerprint, Measurement

VERSION: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class Logbook:
    """An open book. `write` returns when the disk has the line.

    Attributes:
        file: The book.
        fingerprint: The machine, with the date of the first measurement.
        measurements: All so far.
    """

    file: IO[str]
    fingerprint: Fingerprint
    measurements: list[Measurement]

    def write(self, measurement: Measurement) -> None:
        """Add a line. Blocks."""
        _write(self.file, asdict(measurement))
        self.measurements.append(measurement)


@contextmanager
def opened(path: Path, fingerprint: Fingerprint, *, resume: bool) -> Iterator[Logbook]:
    """Open a book while the block runs; one that is not there is begun.

    Args:
        path: The file; its folder is made where it is missing.
        fingerprint: This machine.
        resume: Go on with a book that is there.

    Raises:
        FailedPrecondition: There is one and `resume` is not set; or it is another machine's, or
            damaged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    found, measurements = _read(path) if path.exists() else (None, [])
    if found is not None and not resume:
        raise FailedPrecondition(
            f"{path} holds {len(measurements)} measurements; resume them, or write elsewhere"
        )
    if found is not None and replace(found, measured_on="") != replace(fingerprint, measured_on=""):
        raise FailedPrecondition(
            f"{path} is of another machine: {_differences(found, fingerprint)}; write elsewhere"
        )
    with path.open("a", encoding="utf-8") as file:
        if found is None:
            file.truncate(0)  # nothing, or a first line that was cut short
            _write(file, {"version": VERSION, **asdict(fingerprint)})
        yield Logbook(file, found or fingerprint, measurements)


def _read(path: Path) -> tuple[Fingerprint | None, list[Measurement]]:
    """Return a book's content, after truncating an incomplete last line."""
    whole, _, torn = path.read_bytes().rpartition(b"\n")
    if torn:
        os.truncate(path, len(whole) + 1 if whole else 0)
    if not whole:
        return None, []
    try:
        head, *lines = (json.loads(line) for line in whole.splitlines())
        if head.pop("version") != VERSION:
            raise FailedPrecondition(f"{path} is not of version {VERSION}; write elsewhere")
        return Fingerprint(**head), [Measurement(**line) for line in lines]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FailedPrecondition(f"{path} is damaged ({error}); write elsewhere") from error


def _write(file: IO[str], entry: dict[str, Any]) -> None:
    file.write(json.dumps(entry) + "\n")
    file.flush()
    os.fsync(file.fileno())


def _differences(one: Fingerprint, other: Fingerprint) -> str:
    pairs = ((key, value, asdict(other)[key]) for key, value in asdict(one).items())
    return ", ".join(
        f"{key} {there!r}, here {here!r}"
        for key, there, here in pairs
        if there != here and key != "measured_on"
    )
