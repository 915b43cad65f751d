"""The next SM clock: multiplicative increase, additive decrease (mu-Serve, ATC'24, Alg. 3).

Corrected where the printed algorithm falls short:
- It lowers the clock when the last partition it looks at has slack; here all must have it.
- Its estimate of what a step down costs, latency x STEP / f, is the cost of the step at f, not
  below it; here it is latency x STEP / (f - STEP).
- The linear estimate fails where a queue builds up: there latency grows by more with each step.
  Here a step is taken to cost no less than twice what the step before it did.
- It goes down to where the objective breaks, up, and down there again; here a clock that failed is
  not tried again for a while, unless the load of the partition that failed is lighter.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from services.gpuagent.core.batch_costs import Costs
from services.kit.errors import InvalidArgument


class Move(StrEnum):
    """Change of the clock."""

    UP = "up"
    SAME = "same"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class ClockRules:
    """Parameters of the loop.

    Attributes:
        step: STEP over the GPU's highest clock.
        slack: Below this slack, the clock goes up. Slack is (objective - latency) / objective.
        margin: Slack beyond that which must be left after a step down.
        growth: A step is taken to cost at least so many times what the step before it did.
        lighter: A load is lighter where it is below this share of what failed.
        forget_s: Time after which a clock that failed may be tried again, s.
        patience: Decisions in a row that want more than the highest clock, for a scale-out.
        energy_floor: The clock does not go below where work takes more energy again.
    """

    step: float = 0.05
    slack: float = 0.05
    margin: float = 0.05
    growth: float = 2.0
    lighter: float = 0.8
    forget_s: float = 600.0
    patience: int = 5
    energy_floor: bool = True


RULES = ClockRules()


@dataclass(frozen=True, slots=True)
class GovernedSegment:
    """A segment on the GPU, and the objective of its requests.

    Attributes:
        segment_id, model: Its identity.
        percentile: Share of the requests that must be in time, percent, 0 < percentile < 100.
        objective_s: Objective of their latency, s, > 0.
        sensitivity: How latency follows the clock, 0 (not at all) .. 1 (in proportion).
        costs: Costs of its batches; None: not known, or its requests share no batches.
        processes: That serve it.
    """

    segment_id: str
    model: str
    percentile: float
    objective_s: float
    sensitivity: float = 1.0
    costs: Costs | None = field(default=None, compare=False)
    processes: int = 1


@dataclass(frozen=True, slots=True)
class Partition:
    """Estimated latency of a segment at the present clock (mu-Serve: a model partition).

    Attributes:
        segment: The segment.
        proven_s: Latency that so many requests exceed that the percentile does too, s. None: no
            request was answered since the clock last changed.
        latency_s: Upper confidence bound of the latency at the percentile, s; 0: no requests.
            None: not known yet.
        rate_rps: Requests answered per second.
        budget_spent: The loop's share of the late requests that the objective allows is used up.
    """

    segment: GovernedSegment
    proven_s: float | None = None
    latency_s: float | None = None
    rate_rps: float = 0.0
    budget_spent: bool = False

    @property
    def slack(self) -> float:
        """Share of the objective that is left, by what is proven; 1: nothing is."""
        return 1.0 - (self.proven_s or 0.0) / self.segment.objective_s

    def tolerates(self, state: State, lower_mhz: int, rules: ClockRules) -> bool:
        """Return whether a step down would leave enough slack."""
        if self.latency_s is None or self.budget_spent:
            return False
        step = (state.clock_mhz - lower_mhz) / lower_mhz
        grew_s = self.latency_s - state.before_s.get(self.segment.segment_id, self.latency_s)
        longer_s = max(self.segment.sensitivity * self.latency_s * step, rules.growth * grew_s)
        after = 1.0 - (self.latency_s + longer_s) / self.segment.objective_s
        return after > rules.slack + rules.margin


@dataclass(frozen=True, slots=True)
class Bounds:
    """The clocks that may be used.

    Attributes:
        clocks_mhz: In ascending order, not empty.
        step_mhz: STEP, > 0.
    """

    clocks_mhz: tuple[int, ...]
    step_mhz: float

    @property
    def highest_mhz(self) -> int:
        """Where the loop starts."""
        return self.clocks_mhz[-1]

    def above(self, clock_mhz: int) -> int:
        """Return twice a clock, or the nearest above it that may be used."""
        place = bisect_left(self.clocks_mhz, 2 * clock_mhz)
        return self.clocks_mhz[min(place, len(self.clocks_mhz) - 1)]

    def below(self, clock_mhz: int) -> int:
        """Return a clock less a step, or the nearest above it that may be used, but lower.

        Returns:
            The clock itself, where no lower one may be used.
        """
        place = bisect_left(self.clocks_mhz, clock_mhz - self.step_mhz)
        lower = bisect_left(self.clocks_mhz, clock_mhz) - 1
        return self.clocks_mhz[min(place, lower)] if lower >= 0 else clock_mhz


def bounds(
    supported_mhz: Sequence[int], ceiling_mhz: int, floor: float, rules: ClockRules = RULES
) -> Bounds:
    """Return the clocks that may be used.

    Args:
        supported_mhz: What the GPU supports, in any order, not empty.
        ceiling_mhz: The plan's; 0: the GPU's highest. One below all that is supported: the lowest.
        floor: Least clock over the GPU's highest; a lower ceiling counts more.
        rules: How the loop behaves.
    """
    clocks = sorted(supported_mhz)
    if not clocks:
        raise InvalidArgument("supported_mhz: at least one clock is required")
    end = bisect_right(clocks, ceiling_mhz) if ceiling_mhz else len(clocks)
    start = bisect_left(clocks, floor * clocks[-1])
    usable = clocks[start:end] or clocks[max(end - 1, 0) : max(end, 1)]
    return Bounds(tuple(usable), rules.step * clocks[-1])


@dataclass(frozen=True, slots=True)
class Failure:
    """A clock that was too low. Attributes: clock_mhz, segment_id, rate_rps, at_s."""

    clock_mhz: int
    segment_id: str
    rate_rps: float
    at_s: float


@dataclass(frozen=True, slots=True)
class State:
    """State of the loop.

    Attributes:
        clock_mhz: The clock in use.
        failures: Clocks that were too low recently.
        before_s: Latencies before the last step down, by segment, s.
        rising: It went up, and what waited since before may still be late.
        wanting: Decisions in a row that wanted more than the highest clock.
    """

    clock_mhz: int
    failures: tuple[Failure, ...] = ()
    before_s: Mapping[str, float] = field(default_factory=dict)
    rising: bool = False
    wanting: int = 0

    def barred(self, clock_mhz: int, partition: Partition, rules: ClockRules, at_s: float) -> bool:
        """Return whether a clock was too low for a partition under a load no heavier than now."""
        return any(
            clock_mhz <= failure.clock_mhz
            and failure.segment_id == partition.segment.segment_id
            and at_s - failure.at_s < rules.forget_s
            and not 0 < partition.rate_rps < rules.lighter * failure.rate_rps
            for failure in self.failures
        )


@dataclass(frozen=True, slots=True)
class Observation:
    """Inputs of a decision.

    Attributes:
        partitions: The segments on the GPU.
        limits: Clocks that may be used.
        at_s: When, s.
    """

    partitions: Sequence[Partition]
    limits: Bounds
    at_s: float


def decide(state: State, look: Observation, rules: ClockRules = RULES) -> Move:
    """Return the move: up if any partition needs it, down only if all tolerate it."""
    if any(partition.slack < rules.slack for partition in look.partitions):
        return Move.UP
    if state.clock_mhz < look.limits.highest_mhz and any(
        each.budget_spent for each in look.partitions
    ):
        return Move.UP
    lower_mhz = look.limits.below(state.clock_mhz)
    if lower_mhz == state.clock_mhz or not any(each.rate_rps for each in look.partitions):
        return Move.SAME  # without requests there is no evidence of what is too low
    agreed = all(
        partition.tolerates(state, lower_mhz, rules)
        and not state.barred(lower_mhz, partition, rules, look.at_s)
        for partition in look.partitions
    )
    return Move.DOWN if agreed else Move.SAME


def moved(state: State, move: Move, look: Observation, rules: ClockRules = RULES) -> State:
    """Return the state after a move that `decide` returned for the same arguments."""
    if move is Move.DOWN:
        lower_mhz = look.limits.below(state.clock_mhz)
        before_s = {
            each.segment.segment_id: each.latency_s for each in look.partitions if each.latency_s
        }
        return State(lower_mhz, state.failures, before_s)
    if move is Move.SAME:
        calm = all(each.latency_s is not None for each in look.partitions)
        return replace(state, rising=state.rising and not calm, wanting=0)
    if state.clock_mhz >= look.limits.highest_mhz:
        return replace(state, wanting=state.wanting + 1)
    new = {
        name: Failure(state.clock_mhz, name, each.rate_rps, look.at_s)
        for name, each in ((each.segment.segment_id, each) for each in look.partitions)
        if (each.budget_spent or each.slack < rules.slack) and not state.rising
    }
    kept = (
        known
        for known in state.failures
        if look.at_s - known.at_s < rules.forget_s
        and (known.segment_id not in new or known.clock_mhz != state.clock_mhz)
    )
    return State(look.limits.above(state.clock_mhz), (*kept, *new.values()), rising=True)
