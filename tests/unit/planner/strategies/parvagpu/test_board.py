"""The allocator's board: first fit, and room that comes back."""

from services.planner.core.model import SegmentKind
from services.planner.core.strategies.parvagpu.allocator import relocate
from services.planner.core.strategies.parvagpu.board import Board
from services.planner.core.strategies.parvagpu.configurator import Triplet, sizes
from tests.support.planner import fleets

A100 = fleets.pool("a100-80gb")


def triplet(profile: str, rps: float = 10.0) -> Triplet:
    kind = SegmentKind("m", "v", A100, profile, 1, 1, 0.01, rps, 1.0, 90.0)
    return Triplet(kind, sizes(A100.type.geometry)[profile], rps)


ONE, TWO, THREE, FOUR = map(triplet, ("1g.10gb", "2g.20gb", "3g.40gb", "4g.40gb"))


def starts(board: Board) -> list[list[tuple[int, int]]]:
    """Per GPU, GPCs and start of each segment."""
    return [
        sorted((piece.triplet.size.gpcs, piece.spot.start) for piece in gpu) for gpu in board.gpus
    ]


def test_relocation_places_large_segments_first_and_small_ones_beside_them() -> None:
    board = Board()
    relocate(board, [ONE, TWO, THREE, FOUR, THREE])
    assert starts(board) == [[(3, 4), (4, 0)], [(1, 2), (2, 0), (3, 4)]]
    assert board.gpcs == [7, 6]
    assert board.served_rps == {"m": 50.0}


def test_relocation_leaves_slot_0_to_others_and_gathering_may_take_it() -> None:
    board = Board()
    relocate(board, [THREE, THREE])
    assert starts(board) == [[(3, 4)], [(3, 4)]]
    found = board.find(THREE, anywhere=True)
    assert found is not None
    assert (found[0], found[1].start) == (0, 0)


def test_room_on_a_gpu_passed_over_before_is_found_once_it_is_free_again() -> None:
    board = Board()
    relocate(board, [FOUR, THREE, FOUR, THREE])
    assert board.find(ONE) is None
    piece = next(each for each in board.gpus[0] if each.triplet is THREE)
    board.take(0, piece)
    found = board.find(ONE)
    assert found is not None
    assert (found[0], found[1].start) == (0, 4)
    assert board.served_rps == {"m": 30.0}


def test_a_lifted_gpu_takes_nothing_until_it_is_laid_back_as_it_was() -> None:
    board = Board()
    relocate(board, [FOUR, FOUR, TWO])
    before = starts(board)
    pieces = board.lift(0)
    assert board.find(ONE) == (1, ONE.size.spots[4])
    assert board.served_rps == {"m": 10.0}
    board.lay(0, pieces)
    assert starts(board) == before
    assert board.find(ONE) == (0, ONE.size.spots[6])
    assert board.served_rps == {"m": 30.0}
