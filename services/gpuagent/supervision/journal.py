"""What an agent that was killed left: the segments that ran, and the transaction in progress.

A segment's entry is on disk before the segment is announced, and stays until its last process has
ended. A transaction's is on disk before its first action, until it is done, or undone.
"""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from services.gpuagent.core.transaction_rules import PriorState
from services.kit.mig import Placement
from services.kit.segment import SegmentSpec
from services.kit.state_file import read_parsed, remove, write_json

VERSION: Final = 1
_SPEC: Final = TypeAdapter(SegmentSpec)


class SegmentJournal:
    """The journal of one node. Calls block until the disk has it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> tuple[SegmentSpec, ...]:
        """Return the segments that ran when the agent ended, in order of their start.

        Raises:
            FailedPrecondition: The file is damaged, or of another version.
            Unavailable: It cannot be read.
        """
        return read_parsed(self._path, _specs, version=VERSION) or ()

    def save(self, specs: Iterable[SegmentSpec]) -> None:
        """Replace the journal; it is on disk when this returns."""
        segments = [asdict(spec) for spec in specs]
        write_json(self._path, {"version": VERSION, "segments": segments})


class TransactionJournal:
    """What the transaction in progress touches, as it was. Calls block until the disk has it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> PriorState | None:
        """Return what the unfinished transaction touches; None: there is none.

        Raises:
            FailedPrecondition: The file is damaged, or of another version.
            Unavailable: It cannot be read.
        """
        return read_parsed(self._path, _before, version=VERSION)

    def save(self, then: PriorState) -> None:
        """A transaction begins; this is on disk when the call returns."""
        slices = [
            {"gpu_uuid": uuid, "placement": asdict(placement), "existed": existed}
            for (uuid, placement), existed in then.slices.items()
        ]
        segments = {name: spec and asdict(spec) for name, spec in then.segments.items()}
        clocks_mhz, mig_modes = dict(then.clocks_mhz), dict(then.mig_modes)
        write_json(
            self._path,
            {
                "version": VERSION,
                "slices": slices,
                "segments": segments,
                "clocks_mhz": clocks_mhz,
                "mig_modes": mig_modes,
            },
        )

    def clear(self) -> None:
        """No transaction is in progress any more."""
        remove(self._path)


def _specs(data: dict[str, Any]) -> tuple[SegmentSpec, ...]:
    return tuple(map(_SPEC.validate_python, data["segments"]))


def _before(data: dict[str, Any]) -> PriorState:
    return PriorState(
        slices={
            (entry["gpu_uuid"], Placement(**entry["placement"])): entry["existed"]
            for entry in data["slices"]
        },
        segments={
            name: spec and _SPEC.validate_python(spec) for name, spec in data["segments"].items()
        },
        clocks_mhz=data["clocks_mhz"],
        mig_modes=data["mig_modes"],
    )
