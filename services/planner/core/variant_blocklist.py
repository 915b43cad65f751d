"""Variants that no plan offers: agents gave up on them, or have no file of them yet.

Those that agents gave up on are left out until they have had time to be mended.

An agent quarantines a segment whose workers fail again and again, as with a model file that cannot
be loaded. The plan that trusted it has less capacity than it promises, and the same numbers would
lead to the same plan.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from services.kit.conditions import ConditionKind
from services.kit.segment import SegmentState
from services.planner.core.fleet import Node, RunningSegment
from services.planner.core.model import Model

_FIRST_S = 600.0
_MAX_S = 14_400.0
_FILE_UNUSABLE = (ConditionKind.MODEL_FILE_MISSING, ConditionKind.MODEL_FILE_DAMAGED)

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
    if not distrusted:
        return tuple(models)
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


def absent_variants(
    nodes: Iterable[Node], running: Iterable[RunningSegment]
) -> frozenset[VariantName]:
    """Return the variants whose file no node has as it should be, and of which nothing runs.

    A plan for them would fail; a file that comes later is worth one.

    Args:
        nodes: Those to plan with.
        running: What runs on them.
    """
    found: frozenset[VariantName] | None = None
    for node in nodes:
        missing = frozenset(
            _variant_of(each.subject)
            for each in node.conditions
            if each.kind in _FILE_UNUSABLE and each.of_variant
        )
        found = missing if found is None else found & missing
        if not found:
            return frozenset()
    return (found or frozenset()) - {(each.spec.model, each.spec.variant) for each in running}


def _variant_of(subject: str) -> VariantName:
    _, model, variant = subject.split("/", 2)
    return model, variant


def without_absent(models: Iterable[Model], absent: frozenset[VariantName]) -> tuple[Model, ...]:
    """Return models without the variants named; one that would have none left is left out."""
    if not absent:
        return tuple(models)
    kept = (
        replace(
            model,
            variants=tuple(
                each for each in model.variants if (model.name, each.name) not in absent
            ),
        )
        for model in models
    )
    return tuple(model for model in kept if model.variants)
