"""Variants that no plan offers: agents gave up on them, or no node has their file yet.

An agent quarantines a segment whose workers fail repeatedly, for example because its model file
cannot be loaded. The plan then has less capacity than it promises, and the same numbers would lead
to the same plan: such a variant is left out until it had time to be repaired.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from cinquefoil.condition.v1.records import ConditionKind
from cinquefoil.gpuagent.v1.records import Segment, SegmentState
from services.kit.conditions import concerns_variant
from services.planner.core.fleet import Node
from services.planner.core.model import Model

_FIRST_S = 600.0
_MAX_S = 14_400.0
_FILE_UNUSABLE = (ConditionKind.MODEL_FILE_MISSING, ConditionKind.MODEL_FILE_DAMAGED)

VariantName = tuple[str, str]
"""Names of model and variant."""


@dataclass(slots=True)
class _Failure:
    segments: set[str]
    until_s: float
    pause_s: float
    reason: str = ""


@dataclass(slots=True)
class VariantBlocklist:
    """Failed variants and their time of exclusion: ten minutes, doubled each time, at most 4 h."""

    _failures: dict[VariantName, _Failure] = field(default_factory=dict)

    def learn(self, segments: Iterable[Segment], now_s: float) -> None:
        """Record the running segments; each quarantined segment counts once."""
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
        """Return the variants that are blocked now."""
        return frozenset(self.reasons(now_s))

    def reasons(self, now_s: float) -> dict[VariantName, str]:
        """Return the failure of each variant that is blocked now, as its agent reports it."""
        return {name: each.reason for name, each in self._failures.items() if each.until_s > now_s}


def absent_variants(nodes: Iterable[Node], running: Iterable[Segment]) -> frozenset[VariantName]:
    """Return the variants without a running segment whose valid file no node has.

    A plan for them would fail; a file that arrives later is worth a plan.

    Args:
        nodes: Nodes to plan with.
        running: Segments that run on them.
    """
    found: frozenset[VariantName] | None = None
    for node in nodes:
        missing = frozenset(
            _variant_of(each.subject)
            for each in node.conditions
            if each.kind in _FILE_UNUSABLE and concerns_variant(each)
        )
        found = missing if found is None else found & missing
        if not found:
            return frozenset()
    return (found or frozenset()) - {(each.spec.model, each.spec.variant) for each in running}


def _variant_of(subject: str) -> VariantName:
    _, model, variant = subject.split("/", 2)
    return model, variant


def offered(
    models: Iterable[Model], blocked: frozenset[VariantName], absent: frozenset[VariantName]
) -> tuple[Model, ...]:
    """Return models without the variants that no plan offers.

    A model whose variants are all blocked keeps them: some answers are better than none. One whose
    variants are all absent is left out.
    """
    trusted = (_without(model, blocked, at_least_one=True) for model in models)
    there = (_without(model, absent) for model in trusted)
    return tuple(model for model in there if model.variants)


def _without(model: Model, names: frozenset[VariantName], *, at_least_one: bool = False) -> Model:
    left = tuple(each for each in model.variants if (model.name, each.name) not in names)
    kept = left or (model.variants if at_least_one else ())
    return model if len(kept) == len(model.variants) else replace(model, variants=kept)
