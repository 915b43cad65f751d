"""GPU maps of one pool while they are filled: segments and the memory slices that they take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from services.planner.core.strategies.parvagpu.configurator import ROUNDING, Spot, Triplet

CLOSED = -1
"""A mask with every bit set."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment at its place.

    Attributes:
        triplet: The segment.
        spot: Its place.
        fixed: It already runs, and stays.
    """

    triplet: Triplet
    spot: Spot
    fixed: bool = False


@dataclass(slots=True)
class Search:
    """Progress of the search for places of one size.

    Attributes:
        spots: Acceptable places, best first.
        first: No GPU before this one has room, which keeps first fit linear.
    """

    spots: tuple[Spot, ...]
    first: int = 0

    def spot(self, mask: int) -> Spot | None:
        """Return the best place on a GPU with these memory slices taken; None: there is none."""
        for spot in self.spots:
            if not mask & spot.mask:
                return spot
        return None


@dataclass(slots=True)
class Board:
    """GPUs in order of opening, without a limit on their number.

    Attributes:
        gpus: The pieces of each GPU.
        masks: Taken memory slices of each GPU, one bit each.
        gpcs: GPCs in use of each GPU.
        served_rps: What the pieces can serve, by model.
    """

    gpus: list[list[Piece]] = field(default_factory=list)
    masks: list[int] = field(default_factory=list)
    gpcs: list[int] = field(default_factory=list)
    served_rps: dict[str, float] = field(default_factory=dict)
    _searches: dict[tuple[str, bool], Search] = field(default_factory=dict)

    @classmethod
    def of(cls, gpus: Iterable[Iterable[Piece]]) -> Board:
        """Return a board with `gpus`, without empty ones."""
        board = cls()
        for pieces in filter(None, map(tuple, gpus)):
            index = board.open()
            for piece in pieces:
                board.put(index, piece)
        return board

    @property
    def worth(self) -> tuple[int, int]:
        """Value of the map, smaller is better: GPUs in use, then GPCs in use."""
        return sum(map(bool, self.gpus)), sum(self.gpcs)

    def open(self) -> int:
        """Add an empty GPU and return its index."""
        self.gpus.append([])
        self.masks.append(0)
        self.gpcs.append(0)
        return len(self.gpus) - 1

    def find(self, triplet: Triplet, *, anywhere: bool = False) -> tuple[int, Spot] | None:
        """Return the first GPU with room for a segment, and the place there.

        Args:
            triplet: The segment.
            anywhere: Accept any place; else only those that block least.
        """
        spots = triplet.size.spots if anywhere else triplet.size.thrifty
        search = self._searches.setdefault((triplet.size.profile, anywhere), Search(spots))
        for index in range(search.first, len(self.masks)):
            spot = search.spot(self.masks[index])
            if spot is not None:
                search.first = index
                return index, spot
        search.first = len(self.masks)
        return None

    def put(self, index: int, piece: Piece) -> None:
        """Put a segment at its place, which must be free."""
        triplet = piece.triplet
        """Put a segment at its place, which must be free."""
        triplet = piece.triplet
        self.gpus[index].append(piece)
        self.masks[index] |= piece.spot.mask
        self.gpcs[index] += triplet.size.gpcs
        self._count(triplet, triplet.usable_rps)

    def take(self, index: int, piece: Piece) -> None:
        """Take a segment away."""
        triplet = piece.triplet
        self.gpus[index].remove(piece)
        self.gpcs[index] -= triplet.size.gpcs
        self.masks[index] &= ~piece.spot.mask
        self._count(triplet, -triplet.usable_rps)
        self._make_room(index)

    def lift(self, index: int) -> list[Piece]:
        """Take everything off a GPU and close it for further segments."""
        pieces = self.gpus[index]
        self.gpus[index], self.masks[index], self.gpcs[index] = [], CLOSED, 0
        for piece in pieces:
            self._count(piece.triplet, -piece.triplet.usable_rps)
        return pieces

    def lay(self, index: int, pieces: Iterable[Piece]) -> None:
        """Put back what was lifted off a GPU."""
        self.masks[index] = 0
        for piece in pieces:
            self.put(index, piece)
        self._make_room(index)

    def movable(self, index: int) -> list[Piece]:
        """Return the segments of a GPU that may be moved."""
        return [piece for piece in self.gpus[index] if not piece.fixed]

    def short_rps(self, model: str, demand_rps: Mapping[str, float]) -> float:
        """Return a model's demand that the map leaves unserved, req/s; never below 0."""
        short_rps = demand_rps[model] - self.served_rps.get(model, 0.0)
        return short_rps if short_rps > ROUNDING * demand_rps[model] else 0.0

    def _make_room(self, index: int) -> None:
        for search in self._searches.values():
            if index < search.first and search.spot(self.masks[index]) is not None:
                search.first = index

    def _count(self, triplet: Triplet, rps: float) -> None:
        model = triplet.kind.model
        self.served_rps[model] = self.served_rps.get(model, 0.0) + rps
