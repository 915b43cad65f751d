"""What explanations and differences are made of; fields mirror `explanation.proto`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cinquefoil.condition.v1.records import Condition
from services.kit.segment import SegmentSpec
from services.planner.core.plan import Plan, PlannedSegment, Prediction


@dataclass(frozen=True, slots=True)
class Binding:
    """A constraint that leaves no room.

    Attributes:
        constraint: Which.
        subject: What it binds; "": the whole plan.
        used: How much of it is used, 0..1.
        sentence: For people.
    """

    constraint: str
    subject: str
    used: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Alternative:
    """Something else that could have been decided.

    Attributes:
        description: What it is.
        outlook: The prediction of it.
        loses: How much worse its objective is than the plan's, percentage points.
    """

    description: str
    outlook: Prediction
    loses: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a plan is as it is.

    Attributes:
        version: Of the plan; 0: a dry run.
        bindings: What keeps it from being better, the most binding first.
        plan: The prediction of the plan.
        runner_up: The best configuration found that differs from it, if any.
        base: Each model's best variant on whole GPUs, where the fleet holds it.
        gap: Proven relative optimality gap, or None.
        sentences: All of it, for people.
        conditions: What the plan cannot keep, and which setting changes it.
    """

    version: int
    bindings: tuple[Binding, ...]
    plan: Prediction
    runner_up: Alternative | None
    base: Alternative | None
    gap: float | None
    sentences: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareChange:
    """A segment whose share of its model's load changes, 0..1."""

    segment_id: str
    from_share: float
    to_share: float


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A GPU whose SM clock changes, MHz; 0: the driver's own."""

    gpu_uuid: str
    from_mhz: int
    to_mhz: int


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """How two plans differ.

    Attributes:
        from_version, to_version: The plans; 0: a dry run.
        started: Segments that only the later one has.
        stopped: Segments that only the earlier one has.
        shares: Segments of both whose share changes.
        clocks: GPUs whose clock changes.
        from_outlook, to_outlook: The predictions of both.
        kept: Segments of both.
    """

    from_version: int
    to_version: int
    started: tuple[PlannedSegment, ...]
    stopped: tuple[PlannedSegment, ...]
    shares: tuple[ShareChange, ...]
    clocks: tuple[ClockChange, ...]
    from_outlook: Prediction
    to_outlook: Prediction
    kept: int


def percent(share: float, digits: int = 1) -> str:
    """Return a share of one in percent, as sentences say it."""
    return f"{share:.{digits}%}".replace("%", " %")


_SAME_SHARE = 1e-9


def diff(before: Plan, after: Plan) -> PlanDiff:
    """Return what changes from one plan to another.

    A segment is kept where both plans run the same on the same slice, whatever its id: one that
    ended in between and was started again makes no difference between the two.

    Args:
        before: The earlier plan.
        after: The later plan, or one that is only proposed (version 0).
    """
    old, new = _by_place(before), _by_place(after)
    kept = [(old[place], new[place]) for place in old if place in new]
    return PlanDiff(
        from_version=before.version,
        to_version=after.version,
        started=tuple(segment for place, segment in new.items() if place not in old),
        stopped=tuple(segment for place, segment in old.items() if place not in new),
        shares=tuple(
            ShareChange(now.spec.segment_id, was.share, now.share)
            for was, now in kept
            if abs(now.share - was.share) > _SAME_SHARE
        ),
        clocks=tuple(_clocks(before.clocks_mhz, after.clocks_mhz)),
        from_outlook=before.prediction,
        to_outlook=after.prediction,
        kept=len(kept),
    )


def _by_place(plan: Plan) -> dict[SegmentSpec, PlannedSegment]:
    """Return the segments by what they run and where; their ids say nothing of that."""
    return {replace(segment.spec, segment_id="any"): segment for segment in plan.segments}


def _clocks(before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[ClockChange]:
    for gpu in sorted(before.keys() | after.keys()):
        was, now = before.get(gpu, 0), after.get(gpu, 0)
        if was != now:
            yield ClockChange(gpu, was, now)
