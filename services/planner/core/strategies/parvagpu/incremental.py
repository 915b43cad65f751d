"""Which models keep their running segments (ParvaGPU, SC'24, section III-F)."""

from collections.abc import Mapping, Sequence

from services.planner.core.model import Pool, Problem, Segment
from services.planner.core.strategies.parvagpu.board import Piece
from services.planner.core.strategies.parvagpu.configurator import ROUNDING, Choice

Kept = Mapping[str, Sequence[Piece]]
"""Segments that stay, by GPU."""


def kept(problem: Problem, known: Mapping[Pool, Choice]) -> Kept:
    """Return the running segments of the models that need no new plan.

    A model needs one if its SLO or its rate has changed so much that its segments are no longer
    right: one of them is not an optimal triplet, they serve less than the demand, or one of them
    is not needed. All of its segments stay, or none.
    """
    pools = {gpu.uuid: gpu.pool for gpu in problem.gpus}
    demand_rps = {model.name: model.demand_rps for model in problem.models}
    running: dict[str, list[tuple[str, Piece | None]]] = {}
    for segment in problem.running:
        pool = pools.get(segment.gpu_uuid)
        piece = None if pool is None else _piece(segment, known[pool])
        running.setdefault(segment.kind.model, []).append((segment.gpu_uuid, piece))
    stay: dict[str, list[Piece]] = {}
    for model, placed in running.items():
        pieces = [piece for _, piece in placed if piece is not None]
        if len(pieces) == len(placed) and _right(demand_rps.get(model, 0.0), pieces):
            for (uuid, _), piece in zip(placed, pieces, strict=True):
                stay.setdefault(uuid, []).append(piece)
    return stay


def _piece(segment: Segment, choice: Choice) -> Piece | None:
    """Return a running segment in the allocator's words; None: it is not an optimal triplet."""
    runs = segment.kind
    for triplet in choice.get(runs.model, ()):
        best = triplet.kind
        if (best.variant, best.profile, best.batch_size, best.processes, best.clock_mhz) == (
            runs.variant,
            segment.placement.profile,
            runs.batch_size,
            runs.processes,
            runs.clock_mhz,
        ):
            for spot in triplet.size.spots:
                if spot.start == segment.placement.start:
                    return Piece(triplet, spot, fixed=True)
    return None


def _right(demand_rps: float, pieces: Sequence[Piece]) -> bool:
    total_rps = sum(piece.triplet.usable_rps for piece in pieces)
    least_rps = min(piece.triplet.usable_rps for piece in pieces)
    enough_rps = demand_rps * (1 - ROUNDING)
    return total_rps - least_rps < enough_rps <= total_rps
