"""Plans as records: versioned desired state, and its reason."""

from dataclasses import fields
from typing import Any, Final, NamedTuple

from cinquefoil.planner.v1.records import PlannedSegment, Prediction
from services.planner.core.model import Queue, Score, Segment, queue_of


class Pin(NamedTuple):
    """A plan that an operator holds.

    Attributes:
        version: Version of the plan.
        principal: Identity of the operator; "": identities are not checked.
    """

    version: int
    principal: str = ""


def ordered_by(principal: str) -> str:
    """Return the operator behind a reason as text; "": identities are not checked."""
    return f" (by {principal})" if principal else ""


def queue_of_planned(segment: PlannedSegment) -> Queue:
    """Return the queue that a segment takes its requests from."""
    return queue_of(segment.spec.model, segment.spec.variant, segment.spec.stage)


def planned(segment: Segment) -> PlannedSegment:
    """Return a placed segment as a plan records it."""
    return PlannedSegment(
        spec=segment.spec,
        node=segment.node,
        share=segment.share,
        throughput_rps=segment.kind.throughput_rps,
        latency_s=segment.kind.latency_s,
    )


_SCORED: Final = tuple(
    {each.name for each in fields(Prediction)} & {each.name for each in fields(Score)}
)


def prediction_of(score: Score, **known: Any) -> Prediction:
    """Return a configuration's prediction, from fields of its score and further ones."""
    return Prediction(**{name: getattr(score, name) for name in _SCORED}, **known)
