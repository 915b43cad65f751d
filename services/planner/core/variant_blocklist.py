"""Variants that agents gave up on: no plan offers them until they have had time to be mended.

An agent quarantines a segment whose workers fail again and again, as with a model file that cannot
be loaded. The plan that trusted it has less capacity than it promises, and the same numbers would
lead to the same plan.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from services.kit.segment import SegmentState
from services.planner.core.fleet import RunningSegment
from services.planner.core.model import Model

_FIRST_S = 600.0
_MAX_S = 14_400.0

VariantName = tuple[str, str]
"""Model and variant."""


@dataclass(slots=True)
class _Failure:
    segments: set[str]
    until_s: float
    pause_s: float
    reason: str = ""


@dataclass(slots=True)
class VariantBlocklist:
    """What failed, and how long it is left out: ten minutes, doubled each time, at most 4 h."""

    _failures: dict[VariantName, _Failure] = field(default_factory=dict)

    def learn(self, segments: Iterable[RunningSegment], now_s: float) -> None:
        """Take in what runs; each quarantined segment counts once."""
        for each in segments:
            if each.state is not SegmentState.QUARANTINED:
                continue
            name = (each.spec.model, each.spec.variant)
            known = self._failures.setdefault(name, _Failure(set(), now_s, _FIRST_S / 2))
            if each.spec.segment_id in known.segments:
                continue
            known.segments.add(each.spec.segment_id)
            known.reason = each.reason
            if known.until_s <= now_s:
                known.pause_s = min(2 * known.pause_s, _MAX_S)
                known.until_s = now_s + known.pause_s

    def names(self, now_s: float) -> frozenset[VariantName]:
        """Return the variants that are left out now."""
        return frozenset(self.reasons(now_s))

    def reasons(self, now_s: float) -> dict[VariantName, str]:
        """Return why each variant that is left out now failed, as its agent says."""
        return {name: each.reason for name, each in self._failures.items() if each.until_s > now_s}


def without_blocked(
    models: Iterable[Model], distrusted: frozenset[VariantName]
) -> tuple[Model, ...]:
    """Return models without the variants named; one that would have none left keeps all."""
    return tuple(
        replace(
            model,
            variants=tuple(
                variant
                for variant in model.variants
                if (model.name, variant.name) not in distrusted
            )
            or model.variants,
        )
        for model in models
    )
