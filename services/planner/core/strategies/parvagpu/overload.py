"""What a pool serves that is too small for everything: as many requests as possible."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.planner.core.strategies.parvagpu.board import Board, Piece
from services.planner.core.strategies.parvagpu.configurator import ROUNDING, Choice, Triplet


@dataclass(frozen=True, slots=True)
class Overload:
    """A pool and its demand.

    Attributes:
        owned: Its GPUs.
        demand_rps: What it should serve, by model.
        choice: Its triplets.
        captive: Models that no pool yet to be filled can serve; they come first.
    """

    owned: int
    demand_rps: Mapping[str, float]
    choice: Choice
    captive: frozenset[str]

    def worth(self, board: Board) -> tuple[float, float]:
        """Return what a map serves of the demand: captive models, then all."""
        served_rps = {
            model: min(rps, board.served_rps.get(model, 0.0))
            for model, rps in self.demand_rps.items()
        }
        captive_rps = sum(rps for model, rps in served_rps.items() if model in self.captive)
        return captive_rps, sum(served_rps.values())

    def cut(self, board: Board) -> Board:
        """Return the GPUs of a map that serve most, in their order; what stays is among them."""

        def worth(index: int) -> tuple[int, float, float]:
            pieces = board.gpus[index]
            captive_rps = sum(p.triplet.usable_rps for p in pieces if self._captive(p.triplet))
            total_rps = sum(piece.triplet.usable_rps for piece in pieces)
            return sum(piece.fixed for piece in pieces), captive_rps, total_rps

        best = sorted(range(len(board.gpus)), key=worth, reverse=True)[: self.owned]
        return self._squeezed(Board.of(board.gpus[index] for index in sorted(best)))

    def crowd(self, board: Board, queue: Iterable[Triplet]) -> Board:
        """Return a map with the segments that serve most per GPC added, wherever they fit."""
        crowded = Board.of(board.gpus)
        self._open(crowded)
        for triplet in sorted(queue, key=self._rank, reverse=True):
            place = crowded.find(triplet, anywhere=True)
            if place is not None:
                crowded.put(place[0], Piece(triplet, place[1]))
        return self._squeezed(crowded)

    def _squeezed(self, board: Board) -> Board:
        """Serve what is short from any place left, the largest shortage first.

        Each time by the smallest segment that ends the shortage, or else by the fastest that fits.
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
