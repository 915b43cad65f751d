"""What an agent that was killed left: segments that ran, the transaction in progress, the term.

A segment's entry is on disk before the segment is announced, and stays until its last process has
ended. A transaction's is on disk before its first action, until it is done, or undone.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from services.gpuagent.core.terms import Terms
from services.gpuagent.core.transaction_rules import PriorState
from services.kit.errors import Unavailable
from services.kit.mig import Placement
from services.kit.segment import SegmentSpec
from services.kit.state_file import read_disposable, read_parsed, remove, write_json
from services.kit.telemetry import logs

_log = logs.get("journal")

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


class TermJournal:
    """The highest term of the planner's steps, over a restart."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._terms = Terms()

    @property
    def highest(self) -> int:
        """The highest term so far; 0: none."""
        return self._terms.highest

    async def load(self) -> None:
        """Read it; of a file that is damaged nothing is known, and the next step's counts."""
        try:
            found = await asyncio.to_thread(
                read_disposable, self._path, lambda data: int(data["term"]), version=VERSION
            )
        except Unavailable as error:
            _log.warning("the highest term is not known", error=error.message)
        else:
            self._terms.admit(found or 0)

    async def admit(self, term: int) -> None:
        """Take in the term of a step; a new one is on disk before the step is carried out.

        Raises:
            FailedPrecondition: A step of a higher term has come before.
        """
        if self._terms.admit(term):
            try:
                await asyncio.to_thread(
                    write_json, self._path, {"version": VERSION, "term": self._terms.highest}
                )
            except Unavailable as error:  # disk full: it is known while this process lives
                _log.warning("the highest term was not written", error=error.message)


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
