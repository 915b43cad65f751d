"""What an agent that was killed left: segments that ran, the transaction in progress, the term.

A segment's entry is on disk before the segment is announced, and stays until its last process has
ended. A transaction's is on disk before its first action, until it is done, or undone.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from services.gpuagent.core.terms import Terms
from services.gpuagent.core.transaction_rules import PriorState
from services.kit.errors import Unavailable
from services.kit.segment import SegmentSpec
from services.kit.state_file import read_disposable, read_parsed, remove, write_json
from services.kit.telemetry import logs

_log = logs.get("journal")

VERSION: Final = 1
_SPECS: Final = TypeAdapter(tuple[SegmentSpec, ...])
_PRIOR: Final = TypeAdapter(PriorState)


@dataclass(frozen=True, slots=True)
class SegmentJournal:
    """The journal of one node. Calls block until the disk has it."""

    path: Path

    def load(self) -> tuple[SegmentSpec, ...]:
        """Return the segments that ran when the agent ended, in order of their start.

        Raises:
            FailedPrecondition: The file is damaged, or of another version.
            Unavailable: It cannot be read.
        """
        found = read_parsed(
            self.path, lambda data: _SPECS.validate_python(data["segments"]), version=VERSION
        )
        return found or ()

    def save(self, specs: Iterable[SegmentSpec]) -> None:
        """Replace the journal; it is on disk when this returns."""
        write_json(self.path, {"version": VERSION, "segments": _SPECS.dump_python(tuple(specs))})


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
        return read_parsed(self._path, _PRIOR.validate_python, version=VERSION)

    def save(self, then: PriorState) -> None:
        """A transaction begins; this is on disk when the call returns."""
        write_json(self._path, {"version": VERSION, **_PRIOR.dump_python(then)})

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
