"""Dry runs whose plans may still be applied."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from cinquefoil.gpuagent.v1.records import SegmentSpec
from cinquefoil.planner.v1.records import Plan
from services.kit.errors import FailedPrecondition, NotFound
from services.planner.core.cycle.environment import Clock

LIFETIME_S = 600.0
MAX_DRY_RUNS = 256
"""Number of plans kept, the newest: plans of large fleets take megabytes."""


@dataclass(frozen=True, slots=True)
class Basis:
    """State that a proposal was made for.

    Attributes:
        version: The active plan; 0: none.
        gpus: GPU type by (node, GPU UUID).
        segments: Segments that ran.
    """

    version: int
    gpus: Mapping[tuple[str, str], str] = field(default_factory=dict)
    segments: frozenset[SegmentSpec] = frozenset()


@dataclass(frozen=True, slots=True)
class _StoredPlan:
    plan: Plan
    basis: Basis
    until_s: float


class DryRuns:
    """Proposed plans by id, each kept for LIFETIME_S."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, _StoredPlan] = {}  # in order of time, as all live equally long

    def keep(self, plan: Plan, basis: Basis) -> str:
        """Keep a plan; return its id."""
        proposal_id = uuid.uuid4().hex
        self._kept[proposal_id] = _StoredPlan(plan, basis, self._clock.monotonic() + LIFETIME_S)
        self._forget()
        return proposal_id

    def plan(self, proposal_id: str, now: Basis) -> Plan:
        """Return a plan that may be applied.

        Args:
            proposal_id: Id from `keep`.
            now: Current state.

        Raises:
            NotFound: There is no such proposal, or it has expired.
            FailedPrecondition: The state has changed since it was made.
        """
        self._forget()
        kept = self._kept.get(proposal_id)
        if kept is None:
            raise NotFound.at(
                "proposal_id",
                f"no proposal {proposal_id!r}; proposals end after "
                f"{LIFETIME_S / 60:.0f} minutes, and with the planner's process",
            )
        changed = _changed(kept.basis, now)
        if changed:
            raise FailedPrecondition.at(
                "proposal_id", f"{changed} since the dry run; request a new one"
            )
        return kept.plan

    def _forget(self) -> None:
        now_s = self._clock.monotonic()
        for proposal_id, kept in list(self._kept.items()):
            if kept.until_s > now_s and len(self._kept) <= MAX_DRY_RUNS:
                break
            del self._kept[proposal_id]


def _changed(before: Basis, now: Basis) -> str:
    if now.version != before.version:
        return f"plan {now.version} took the place of plan {before.version}"
    if now.gpus != before.gpus:
        return "the fleet has changed"
    return "what runs has changed" if now.segments != before.segments else ""
