"""Which segments run, kept so that an agent that was killed finds them again.

An entry is on disk before the segment is announced, and stays until its last process has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from services.gpuagent.domain import SegmentSpec
from services.gpuagent.files import read_json, write_json
from services.kit.mig import Placement

VERSION: Final = 1


class Journal:
    """The journal of one node. Calls block until the disk has it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> tuple[SegmentSpec, ...]:
        """Return the segments that ran when the agent ended, in order of their start.

        Raises:
            FailedPrecondition: The file is damaged, or of another version.
        """
        data = read_json(self._path, version=VERSION)
        return tuple(map(_spec, data["segments"])) if data else ()

    def save(self, specs: Iterable[SegmentSpec]) -> None:
        """Replace the journal; it is on disk when this returns."""
        segments = [asdict(spec) for spec in specs]
        write_json(self._path, {"version": VERSION, "segments": segments})


def _spec(data: dict[str, Any]) -> SegmentSpec:
    return SegmentSpec(**{**data, "placement": Placement(**data["placement"])})
