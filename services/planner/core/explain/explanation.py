"""Differences between plans, and formatting of figures in sentences."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

from cinquefoil.gpuagent.v1.records import SegmentSpec
from cinquefoil.planner.v1.records import (
    ClockChange,
    Outlook,
    Plan,
    PlanDiff,
    PlannedSegment,
    Prediction,
    ShareChange,
)


def outlook_of(prediction: Prediction) -> Outlook:
    """Return the figures of a prediction that explanations compare."""
    return Outlook(**{each.name: getattr(prediction, each.name) for each in fields(Outlook)})


def percent(share: float, digits: int = 1) -> str:
    """Return a share of one as text in percent."""
    return f"{share:.{digits}%}".replace("%", " %")


_SAME_SHARE = 1e-9


def diff(before: Plan, after: Plan) -> PlanDiff:
    """Return the changes from one plan to another.

    A segment is kept if both plans run the same on the same slice, whatever its id: a segment that
    was restarted in between makes no difference.

    Args:
        before: The earlier plan.
        after: The later plan, or a proposed one (version 0).
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
        from_outlook=outlook_of(before.prediction),
        to_outlook=outlook_of(after.prediction),
        kept=len(kept),
    )


def _by_place(plan: Plan) -> dict[SegmentSpec, PlannedSegment]:
    """Return the segments by content and place, without their ids."""
    return {replace(segment.spec, segment_id="any"): segment for segment in plan.segments}


def _clocks(before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[ClockChange]:
    for gpu in sorted(before.keys() | after.keys()):
        was, now = before.get(gpu, 0), after.get(gpu, 0)
        if was != now:
            yield ClockChange(gpu, was, now)
