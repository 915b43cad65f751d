"""Differences between plans, what of them is comparable, and figures in sentences."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from itertools import islice
from typing import Final

from cinquefoil.gpuagent.v1.records import SegmentSpec
from cinquefoil.planner.v1.records import (
    ClockChange,
    Goals,
    Outlook,
    Plan,
    PlanDiff,
    PlanInputs,
    PlannedSegment,
    Prediction,
    ShareChange,
    Unlike,
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
        unlike=tuple(unlike(before.inputs, after.inputs)),
    )


_ALIKE: Final = 0.01
"""Relative difference up to which loads and intensities count as the same."""

_OF_LOAD: Final = ("objective", "latency_s", "accuracy", "power_w", "carbon_gco2e_per_h", "gpus")
_MAX_NAMED: Final = 3


def unlike(before: PlanInputs, after: PlanInputs) -> Iterator[Unlike]:
    """Yield the circumstances that two plans do not share, with the figures that depend on them.

    Points of the objective are relative to BASE under a plan's own circumstances: only under the
    same ones do they have the same zero and unit.
    """
    load = _moved(before.demand_rps, after.demand_rps)
    if load:
        yield Unlike(
            "load", f"the load differs: {_listed(load, 'req/s')}", (*_OF_LOAD, "unserved_rps")
        )
    grid = _moved(before.intensity_gco2e_per_kwh, after.intensity_gco2e_per_kwh)
    if grid:
        text = f"the grid differs: {_listed(grid, 'gCO2e/kWh')}"
        yield Unlike("grid", text, ("objective", "carbon_gco2e_per_h"))
    fleet = _moved(before.gpus, after.gpus)
    if fleet:
        yield Unlike("fleet", f"the fleet differs: {_listed(fleet, 'GPUs')}", ("objective",))
    aims = _moved(_aims(before), _aims(after))
    if aims:
        yield Unlike("objective", f"the objective differs: {_listed(aims, '')}", ("objective",))


def _aims(inputs: PlanInputs) -> dict[str, float]:
    goals = inputs.goals or Goals(clover=1.0)
    return {
        "carbon_weight": inputs.carbon_weight,
        "accuracy_floor": inputs.accuracy_floor,
        **{each.name: getattr(goals, each.name) for each in fields(goals)},
    }


def _moved(
    before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Return the values that differ, by name; one that is missing is 0."""
    pairs = {
        name: (before.get(name, 0.0), after.get(name, 0.0))
        for name in sorted(before.keys() | after.keys())
    }
    return {
        name: (was, now)
        for name, (was, now) in pairs.items()
        if not math.isclose(was, now, rel_tol=_ALIKE)
    }


def _listed(moved: Mapping[str, tuple[float, float]], unit: str) -> str:
    named = [
        f"{name} {was:.4g} -> {now:.4g}" for name, (was, now) in islice(moved.items(), _MAX_NAMED)
    ]
    more = [f"{len(moved) - len(named)} more"] if len(moved) > len(named) else []
    return " ".join(filter(None, (", ".join(named), unit, *(f"and {each}" for each in more))))


def _by_place(plan: Plan) -> dict[SegmentSpec, PlannedSegment]:
    """Return the segments by content and place, without their ids."""
    return {replace(segment.spec, segment_id="any"): segment for segment in plan.segments}


def _clocks(before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[ClockChange]:
    for gpu in sorted(before.keys() | after.keys()):
        was, now = before.get(gpu, 0), after.get(gpu, 0)
        if was != now:
            yield ClockChange(gpu, was, now)
