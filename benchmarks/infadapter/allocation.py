"""InfAdapter's Eq. 1 (EuroMLSys'23, section 3) over any countable resource, solved exactly.

Which variants to run, how large, and which share of the load each one takes:

    max  alpha * AA - (beta * RC + gamma * LC)

    AA  mean accuracy of the served load           RC  units in use as a share of the budget
    LC  longest loading time of a variant that is started or resized, s

so that capacities cover the load and units the budget. Each variant has one size at most.

For given sizes it is best to fill the most accurate variant first. Hence depth-first search in
order of accuracy, cut where a bound on what the variants to come can add says so
(`benchmarks.infadapter.branch_and_bound`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.infadapter.branch_and_bound import Level, Search, Size
from services.kit.config import InfAdapter as Weights
from services.kit.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant, and what it can do at which size.

    Attributes:
        name: Name of the variant.
        accuracy: In the unit that the objective shall be in, >= 0.
        load_s: Time until a new or resized instance is ready, s (rt_m).
        capacity_rps: By number of units, >= 1: load it serves within the SLO, req/s (th_m). Sizes
            that miss the SLO are left out.
    """

    name: str
    accuracy: float
    load_s: float
    capacity_rps: Mapping[int, float]

    def __post_init__(self) -> None:
        numbers = (self.accuracy, self.load_s, *self.capacity_rps.values())
        if not all(math.isfinite(number) and number >= 0 for number in numbers):
            raise InvalidArgument(
                f"{self.name}: accuracy, load_s and capacity_rps must be finite and >= 0",
                field="candidates",
            )
        if any(units < 1 for units in self.capacity_rps):
            raise InvalidArgument(f"{self.name}: sizes must be >= 1 unit", field="candidates")


@dataclass(frozen=True, slots=True)
class Allocation:
    """Variants that run, and the load that each takes.

    Attributes:
        units: By variant; the most accurate first.
        load_rps: By variant (lambda_m), the same keys.
        objective: Eq. 1 over the served load.
        unserved_rps: Load beyond what the budget can serve; above 0 means overloaded.
        parts: Sizes of a variant's segments, of variants that have several.
    """

    units: Mapping[str, int]
    load_rps: Mapping[str, float]
    objective: float
    unserved_rps: float = 0.0
    parts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def sizes(self, name: str) -> tuple[int, ...]:
        """Return the sizes of a variant's segments; none where it does not run."""
        units = self.units.get(name)
        return self.parts.get(name, () if units is None else (units,))

    @property
    def overloaded(self) -> bool:
        """Return whether some of the load is not served."""
        return self.unserved_rps > 0

    @property
    def shares(self) -> Mapping[str, float]:
        """Share of the load by variant; load that is not served counts for none."""
        total_rps = sum(self.load_rps.values())
        return {name: rps / total_rps for name, rps in self.load_rps.items()} if total_rps else {}


class Allocator:
    """Allocates one budget among the same candidates, again and again."""

    def __init__(self, candidates: Iterable[Candidate], budget: int, weights: Weights) -> None:
        """Prepare what does not depend on the load.

        Args:
            candidates: Variants with distinct names.
            budget: Units to share out, >= 1 (B).
            weights: alpha, beta, gamma.

        Raises:
            InvalidArgument: A name occurs twice, or there is no unit.
        """
        ranked = sorted(candidates, key=lambda each: -each.accuracy)
        if len({each.name for each in ranked}) < len(ranked):
            raise InvalidArgument("names of candidates must differ", field="candidates")
        if budget < 1:
            raise InvalidArgument(f"budget must be >= 1 unit, got {budget}", field="budget")
        self._budget = budget
        self._weights = weights
        self._candidates = ranked
        self._sizes = [_useful(each, budget) for each in ranked]
        self._reach = _reach(self._sizes, budget)

    @property
    def capacity_rps(self) -> float:
        """Largest load that the budget can serve, req/s."""
        return self._reach[0][self._budget]

    def allocate(self, load_rps: float, running: Mapping[str, int] | None = None) -> Allocation:
        """Return the optimum for a load.

        Above capacity: the optimum among the allocations that serve most.

        Args:
            load_rps: Load to serve, >= 0 (lambda).
            running: Units by variant now; these sizes need no loading.

        Raises:
            InvalidArgument: The load is negative or not finite.
        """
        if not (math.isfinite(load_rps) and load_rps >= 0):
            raise InvalidArgument(f"load_rps must be >= 0, got {load_rps}", field="load_rps")
        served_rps = min(load_rps, self.capacity_rps)
        if served_rps <= 0:
            return Allocation({}, {}, 0.0, unserved_rps=load_rps)
        search = self._search(served_rps, running or {})
        chosen = [(self._candidates[take.level].name, take) for take in search.run()]
        return Allocation(
            units={name: take.size.units for name, take in chosen},
            load_rps={name: take.load for name, take in chosen},
            objective=search.best_value,
            unserved_rps=load_rps - served_rps,
        )

    def _search(self, load_rps: float, running: Mapping[str, int]) -> Search:
        unit_price = self._weights.resources / self._budget
        levels = []
        for candidate, sizes in zip(self._candidates, self._sizes, strict=True):
            held = running.get(candidate.name, 0)
            offered = dict(sizes)
            if held <= self._budget and candidate.capacity_rps.get(held, 0.0) > 0:
                offered[held] = candidate.capacity_rps[held]
            levels.append(
                Level(
                    worth=self._weights.accuracy * candidate.accuracy / load_rps,
                    sizes=tuple(
                        Size(
                            n,
                            rps,
                            unit_price * n,
                            0.0 if n == held else candidate.load_s,
                            n == held,
                        )
                        for n, rps in sorted(offered.items())
                    ),
                )
            )
        return Search(
            levels=levels,
            reach=self._reach,
            budget=self._budget,
            load=load_rps,
            unit_price=unit_price,
            loading_price=self._weights.loading,
        )


def _useful(candidate: Candidate, budget: int) -> dict[int, float]:
    """Return the sizes that no smaller one matches in capacity."""
    useful: dict[int, float] = {}
    most_rps = 0.0
    for units, rps in sorted(candidate.capacity_rps.items()):
        if units <= budget and rps > most_rps:
            useful[units] = most_rps = rps
    return useful


def _reach(sizes: Sequence[Mapping[int, float]], budget: int) -> list[list[float]]:
    """Return the largest load by first candidate and number of units, shape (n + 1, budget + 1)."""
    reach = [[0.0] * (budget + 1)]
    for own in reversed(sizes):
        later = reach[0]
        reach.insert(
            0,
            [
                max([later[u], *(rps + later[u - n] for n, rps in own.items() if n <= u)])
                for u in range(budget + 1)
            ],
        )
    return reach
