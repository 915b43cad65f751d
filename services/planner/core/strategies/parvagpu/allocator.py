"""Segment Allocator (ParvaGPU, SC'24, section III-E, Algorithm 2): assignment of segments to GPUs.

Repaired:

- A segment's memory slices are all taken, and it starts only where the driver allows (the public
  code marks the first slot alone: its maps overlap).
- The served load of a freed segment follows from the map: demand less what is left (the code
credits
  a freed segment with the throughput of the optimal or of the last one, whichever has its size).
- A segment whose model has no small triplet is not freed (the code frees it and forgets it).
- Segments that cannot be split still share GPUs: at the end, GPUs are emptied into places that the
  paper calls not advisable (two of size 3 on one GPU).
- The optimised map stands only if it takes fewer GPUs or GPCs (Algorithm 2 returns it anyway).

`overload` decides what a fleet that is too small serves; the public code stops wherever its queues
are at that point.
"""

from collections.abc import Iterable, Mapping

from services.planner.core.strategies.parvagpu.board import Board, Piece
from services.planner.core.strategies.parvagpu.configurator import Choice, Triplet, is_small, split

FRAGMENTED = 4 / 7
"""GPUs with at most this share of their GPCs in use are split (section III-E: 4 of 7)."""


def relocate(board: Board, queue: Iterable[Triplet]) -> None:
    """Put segments on the first GPU with a good place, large ones first (Segment Relocation)."""
    for triplet in sorted(queue, key=lambda each: -each.size.gpcs):
        index, spot = board.find(triplet) or (board.open(), triplet.size.thrifty[0])
        board.put(index, Piece(triplet, spot))


def optimised(
    board: Board, gpu_gpcs: int, demand_rps: Mapping[str, float], choice: Choice
) -> Board:
    """Return the map with the fewest GPUs: before or after Allocation Optimisation.

    Args:
        board: The map after relocation.
        gpu_gpcs: GPCs of one GPU.
        demand_rps: Demand by model, req/s.
        choice: The pool's triplets.
    """
    divided = Board.of(board.gpus)
    _divide(divided, FRAGMENTED * gpu_gpcs, demand_rps, choice)
    candidates = divided, Board.of(board.gpus)
    for candidate in candidates:
        _gather(candidate)
    return Board.of(min(candidates, key=lambda each: each.worth).gpus)


def _divide(
    board: Board, most_gpcs: float, demand_rps: Mapping[str, float], choice: Choice
) -> None:
    """Split segments of poorly used GPUs, the last first, and place the parts from the front."""
    for index in reversed(range(len(board.gpus))):
        if board.gpcs[index] <= most_gpcs:
            freed = [each for each in board.movable(index) if _splits(each, choice)]
            for piece in freed:
                board.take(index, piece)
            models = dict.fromkeys(piece.triplet.kind.model for piece in freed)
            relocate(
                board,
                [
                    part
                    for model in models
                    for part in split(board.short_rps(model, demand_rps), choice[model])
                ],
            )


def _gather(board: Board) -> None:
    """Empty GPUs into free places of others, the least used first.

    The number of free places only falls: of GPUs with the same slices, none is tried after one that
    could not be emptied.
    """
    failed: set[tuple[str, ...]] = set()
    for index in sorted(range(len(board.gpus)), key=lambda each: board.gpcs[each]):
        slices = tuple(sorted(piece.triplet.size.profile for piece in board.gpus[index]))
        if slices not in failed and len(board.movable(index)) == len(slices):
            pieces = board.lift(index)
            if not _move(board, pieces):
                board.lay(index, pieces)
                failed.add(slices)


def _move(board: Board, pieces: Iterable[Piece]) -> bool:
    """Put all of `pieces` anywhere on open GPUs, or none of them."""
    moved: list[tuple[int, Piece]] = []
    for piece in sorted(pieces, key=lambda each: -each.triplet.size.gpcs):
        place = board.find(piece.triplet, anywhere=True)
        if place is None:
            for where, each in moved:
                board.take(where, each)
            return False
        moved.append((place[0], Piece(piece.triplet, place[1])))
        board.put(*moved[-1])
    return True


def _splits(piece: Piece, choice: Choice) -> bool:
    return any(map(is_small, choice[piece.triplet.kind.model]))
