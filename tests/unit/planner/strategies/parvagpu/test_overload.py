"""Load that a pool too small serves: most requests, but first those that no other pool can."""

from services.planner.core.model import SegmentKind
from services.planner.core.strategies.parvagpu.allocator import relocate
from services.planner.core.strategies.parvagpu.board import Board
from services.planner.core.strategies.parvagpu.configurator import Triplet, sizes
from services.planner.core.strategies.parvagpu.overload import Overload
from tests.support.planner import fleets

A100 = fleets.pool("a100-80gb")


def triplet(model: str, profile: str, rps: float) -> Triplet:
    kind = SegmentKind(model, "v", A100, profile, 1, 1, 0.01, rps, 1.0, 90.0)
    return Triplet(kind, sizes(A100.type.geometry)[profile], rps)


QUICK, HEAVY = triplet("quick", "7g.80gb", 100.0), triplet("heavy", "7g.80gb", 10.0)
CHOICE = {"quick": [QUICK], "heavy": [HEAVY]}


def overload(*captive: str) -> Overload:
    return Overload(1, {"quick": 100.0, "heavy": 10.0}, CHOICE, frozenset(captive))


def test_of_two_gpus_the_one_that_serves_most_stays() -> None:
    board = Board()
    relocate(board, [HEAVY, QUICK])
    assert overload().cut(board).served_rps == {"quick": 100.0}
    assert overload("heavy").cut(board).served_rps == {"heavy": 10.0}


def test_segments_that_serve_most_per_gpc_are_placed_first() -> None:
    for captive, served in (((), "quick"), (("heavy",), "heavy")):
        board = overload(*captive).crowd(Board(), [HEAVY, QUICK])
        assert set(board.served_rps) == {served}


def test_a_map_is_worth_the_demand_that_it_serves_and_no_more() -> None:
    board = Board()
    relocate(board, [HEAVY, QUICK, QUICK])
    assert overload().worth(board) == (0.0, 110.0)
    assert overload("heavy").worth(board) == (10.0, 110.0)


def test_places_left_go_to_the_smallest_segment_that_ends_the_shortage() -> None:
    """Of 1, 2 and 3 GPCs for 15 req/s: the one of 2; then nothing is short."""
    choice = [triplet("m", f"{n}g.{n if n < 3 else 4}0gb", 10.0 * n) for n in (1, 2, 3)]
    board = Overload(1, {"m": 15.0}, {"m": choice}, frozenset()).crowd(Board(), [])
    assert [piece.triplet.size.gpcs for piece in board.gpus[0]] == [2]
