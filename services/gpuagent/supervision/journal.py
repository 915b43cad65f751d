"""Record of running segments and the planner's term, for the agent after a crash."""

import asyncio
from dataclasses import dataclass, field

from cinquefoil.gpuagent.v1.records import SegmentSpec
from services.gpuagent.core.terms import Terms
from services.gpuagent.state_store import Store
from services.kit.errors import Unavailable
from services.kit.telemetry import logs

_log = logs.get("journal")


@dataclass(frozen=True, slots=True)
class Journal:
    """The segments of a node, in order of their start.

    An entry is on disk before the segment is announced, and stays until its last process has ended.
    """

    segments: tuple[SegmentSpec, ...]


@dataclass(slots=True, eq=False)
class TermJournal:
    """The highest term of the planner's steps, over a restart. Attributes: store, highest."""

    store: Store[Terms]
    highest: Terms = field(default_factory=Terms)

    async def load(self) -> None:
        """Read it; of a file that is damaged nothing is known, and the next step's counts."""
        try:
            found = await asyncio.to_thread(self.store.load, disposable=True)
        except Unavailable as error:
            _log.warning("the highest term is not known", error=error.message)
        else:
            self.highest = found or self.highest

    async def admit(self, term: int) -> None:
        """Take in the term of a step; a new one is on disk before the step is carried out.

        Raises:
            FailedPrecondition: A step of a higher term has come before.
        """
        if self.highest.admit(term):
            try:
                await asyncio.to_thread(self.store.save, self.highest)
            except Unavailable as error:  # disk full: it is known while this process lives
                _log.warning("the highest term was not written", error=error.message)
