"""Placement by clock sensitivity: similar segments share a GPU, so that other clocks may drop.

mu-Serve's Algorithm 2 with slots for bins (the paper's own form is in `benchmarks.muserve`): slices
determine what fits, and running segments stay: moving one costs more than a clock saves.
"""

from collections.abc import Iterable, Mapping, Sequence

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.grouping import grouped
from services.planner.core.model import Problem, SegmentKind, variants_of

ALIKE = 0.1
"""Difference of sensitivities up to which a device in use is as good as an empty one."""


def fitting_score(sensitivity: float, others: Iterable[tuple[float, float]]) -> float:
    """Return how well a partition suits those already on a device; 0 is best.

    Args:
        sensitivity: Sensitivity of the partition.
        others: Sensitivity and weight of each partition on the device. Without any, the paper
            leaves the score undefined; here an empty device is preferred to one whose partitions
            differ by more than ALIKE.

    Returns:
        Minus the distance to their weighted mean (section 3.2).
    """
    pairs = list(others)
    total = sum(weight for _, weight in pairs)
    if total <= 0:
        return -ALIKE
    mean = sum(value * weight for value, weight in pairs) / total
    return -abs(sensitivity - mean)


SlicePlace = tuple[str, Placement]
"""A place for a segment: GPU UUID and slice."""

_Mix = tuple[float, int]
"""Segments on a GPU: their mean sensitivity, and their number."""

_EMPTY: _Mix = (0.0, 0)

Sensitivities = Mapping[tuple[str, str], Sequence[float]]
"""Sensitivities of the stages by model and variant."""


def sensitivities(problem: Problem) -> Sensitivities:
    """Return the clock sensitivities of all variants, 0..1."""
    known = variants_of(problem.models).items()
    return {name: variant.clock_sensitivities for name, variant in known}


def assign(
    free: Mapping[SlicePlace, int],
    kinds: Sequence[SegmentKind],
    held: Mapping[SlicePlace, SegmentKind],
    known: Sensitivities,
) -> dict[SlicePlace, SegmentKind]:
    """Return the places of segments, each the one that best suits its GPU's segments.

    Args:
        free: Free places with the SM clock of their GPU, MHz; in order of preference.
        kinds: Segments to place; enough places of their slice and clock must be free.
        held: Segments that stay, with their places.
        known: Sensitivities of all variants.
    """
    beside: dict[str, _Mix] = {}
    for (uuid, _), kind in held.items():
        beside[uuid] = _joined(beside.get(uuid, _EMPTY), _sensitivity(kind, known))
    open_to = grouped(((spot[1].profile, clock), spot) for spot, clock in free.items())
    placed = {}
    for kind in sorted(kinds, key=lambda each: -_sensitivity(each, known)):
        mine = _sensitivity(kind, known)
        spots = open_to[kind.profile, kind.clock_mhz]
        mixes = {beside.get(uuid, _EMPTY) for uuid, _ in spots}  # few, however large the fleet
        likeliest = max(sorted(mixes), key=lambda mix: fitting_score(mine, [mix]))
        best = next(spot for spot in spots if beside.get(spot[0], _EMPTY) == likeliest)
        spots.remove(best)
        beside[best[0]] = _joined(likeliest, mine)
        placed[best] = kind
    return placed


def _joined(mix: _Mix, sensitivity: float) -> _Mix:
    mean, count = mix
    return (mean * count + sensitivity) / (count + 1), count + 1


def _sensitivity(kind: SegmentKind, known: Sensitivities) -> float:
    stages = known.get((kind.model, kind.variant), ())
    return stages[kind.stage.index] if kind.stage.index < len(stages) else 1.0
