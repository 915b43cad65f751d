"""Work that waits at the batch service, as the planner gets it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from cinquefoil.batch.v1.records import Batch, BatchState
from cinquefoil.planner.v1.records import WaitingBucket, WaitingModel
from services.kit.grouping import grouped

MAX_BUCKETS: Final = 64


def left(batch: Batch) -> int:
    """Return the lines of a batch that have no result."""
    return max(batch.lines - batch.completed - batch.failed, 0)


def waiting_models(
    batches: Iterable[Batch], in_flight: Mapping[str, int], answered: Mapping[str, int]
) -> list[WaitingModel]:
    """Return what waits, by model.

    Args:
        batches: Batches that have not ended.
        in_flight: Lines by model that are with routers.
        answered: Lines by model that were answered since the start.
    """
    open_ = [each for each in batches if each.state is BatchState.IN_PROGRESS and left(each)]
    return [
        WaitingModel(
            model=model,
            buckets=_buckets(sorted(its, key=lambda each: each.created_at + each.window)),
            in_flight=in_flight.get(model, 0),
            answered=answered.get(model, 0),
        )
        for model, its in grouped((each.model, each) for each in open_).items()
    ]


def _buckets(batches: list[Batch]) -> tuple[WaitingBucket, ...]:
    """Return batches by deadline; where there are many, neighbours share the earlier one."""
    size = -(-len(batches) // MAX_BUCKETS)
    groups = [batches[at : at + size] for at in range(0, len(batches), size)]
    return tuple(
        WaitingBucket(
            due=group[0].created_at + group[0].window,
            window=group[0].window,
            requests=sum(map(left, group)),
            prompt_tokens=round(sum(_tokens(each, each.prompt_tokens) for each in group)),
            output_tokens=round(sum(_tokens(each, each.output_tokens) for each in group)),
        )
        for group in groups
    )


def _tokens(batch: Batch, answered: int) -> float:
    """Return the tokens of lines that are left, by those that were answered."""
    return answered / batch.completed * left(batch) if batch.completed else 0.0


def due_no_later(batches: Iterable[Batch], batch: Batch) -> int:
    """Return the lines of a batch's model that are due no later than it, its own included."""
    due = batch.created_at + batch.window
    return sum(
        left(each)
        for each in batches
        if each.model == batch.model
        and each.state is BatchState.IN_PROGRESS
        and each.created_at + each.window <= due
    )
