"""Maps for a pool that is too small for its demand: as many requests as possible."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.planner.core.strategies.parvagpu.board import Board, Piece
from services.planner.core.strategies.parvagpu.configurator import ROUNDING, Choice, Triplet


@dataclass(frozen=True, slots=True)
class Overload:
    """A pool and the demand that exceeds it.

    Attributes:
        owned: GPUs of the pool.
        demand_rps: Demand by model, req/s.
        choice: The pool's triplets.
        captive: Models that no later pool can serve; they come first.
    """

    owned: int
    demand_rps: Mapping[str, float]
    choice: Choice
    captive: frozenset[str]

    def worth(self, board: Board) -> tuple[float, float]:
        """Return the demand that a map serves: of captive models, then of all."""
        served_rps = {
            model: min(rps, board.served_rps.get(model, 0.0))
            for model, rps in self.demand_rps.items()
        }
        captive_rps = sum(rps for model, rps in served_rps.items() if model in self.captive)
        return captive_rps, sum(served_rps.values())

    def cut(self, board: Board) -> Board:
        """Return the GPUs of a map that serve most, in order; those with fixed segments stay."""

        def worth(index: int) -> tuple[int, float, float]:
            pieces = board.gpus[index]
            captive_rps = sum(p.triplet.usable_rps for p in pieces if self._captive(p.triplet))
            total_rps = sum(piece.triplet.usable_rps for piece in pieces)
            return sum(piece.fixed for piece in pieces), captive_rps, total_rps

        best = sorted(range(len(board.gpus)), key=worth, reverse=True)[: self.owned]
        return self._squeezed(Board.of(board.gpus[index] for index in sorted(best)))

    def crowd(self, board: Board, queue: Iterable[Triplet]) -> Board:
        """Return a map with segments added wherever they fit, the best per GPC first."""
        crowded = Board.of(board.gpus)
        self._open(crowded)
        for triplet in sorted(queue, key=self._rank, reverse=True):
            place = crowded.find(triplet, anywhere=True)
            if place is not None:
                crowded.put(place[0], Piece(triplet, place[1]))
        return self._squeezed(crowded)

    def _squeezed(self, board: Board) -> Board:
        """Serve the shortages from any place left, the largest first.

        Each time by the smallest segment that ends the shortage, else by the fastest that fits.
        """
        self._open(board)
        short_rps = {model: board.short_rps(model, self.demand_rps) for model in self.demand_rps}
        for model in sorted(short_rps, key=lambda each: -short_rps[each]):
            while (left_rps := board.short_rps(model, self.demand_rps)) > 0:
                places = [(each, board.find(each, anywhere=True)) for each in self.choice[model]]
                fitting = [(each, place) for each, place in places if place is not None]
                if not fitting:
                    break
                triplet, (index, spot) = min(
                    fitting, key=lambda each: _misfit(each[0].usable_rps, left_rps)
                )
                board.put(index, Piece(triplet, spot))
        return board

    def _open(self, board: Board) -> None:
        while len(board.gpus) < self.owned:
            board.open()

    def _rank(self, triplet: Triplet) -> tuple[bool, float]:
        return self._captive(triplet), triplet.rps_per_gpc

    def _captive(self, triplet: Triplet) -> bool:
        return triplet.kind.model in self.captive


def _misfit(usable_rps: float, short_rps: float) -> tuple[bool, float]:
    """Rank segments for a shortage: the smallest that ends it, or else the largest."""
    enough = usable_rps >= short_rps * (1 - ROUNDING)
    return not enough, usable_rps if enough else -usable_rps
