"""The fleet's energy account so far, and the counters up to which it was booked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from services.planner.core.accounting.counters import EnergyCounters

_MAX_ROUTERS = 256


@dataclass(frozen=True, slots=True)
class Spent:
    """Energy and its carbon. Attributes: energy_j (device energy, J), carbon_gco2e (with PUE)."""

    energy_j: float = 0.0
    carbon_gco2e: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.energy_j + other.energy_j, self.carbon_gco2e + other.carbon_gco2e)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of one model.

    Attributes:
        input: Tokens of prompts.
        output: Tokens generated.
        input_squares: Sum of the squares of the prompts' lengths; 0: not known.
        cached: Of the prompts' tokens, those that servers had cached.
    """

    input: int = 0
    output: int = 0
    input_squares: float = 0.0
    cached: int = 0

    def since(self, then: Tokens) -> Tokens:
        """Return the tokens that came after a report; none where counters fell."""
        read = max(self.input - then.input, 0)
        cached = min(max(self.cached - then.cached, 0), read)
        return Tokens(read, max(self.output - then.output, 0), cached=cached)


@dataclass(frozen=True, slots=True)
class Account:
    """The fleet's account, from its first reading on.

    Attributes:
        total: Energy and carbon spent so far.
        gpus: Counters of each GPU, by UUID.
        routers: Token counts by router id and model.
        page: Number of times that it was written.
    """

    total: Spent = Spent()
    gpus: Mapping[str, EnergyCounters] = field(default_factory=dict)
    routers: Mapping[str, Mapping[str, Tokens]] = field(default_factory=dict)
    page: int = 0

    def count(
        self, router: str, counted: Mapping[str, Tokens]
    ) -> tuple[Account, dict[str, Tokens]]:
        """Return the account after a router's report, and the tokens that are new in it.

        Args:
            router: Id of the router; each process has its own.
            counted: Tokens since the router started, by model. Its account begins with the first
                report.
        """
        known = self.routers.get(router)
        others = {name: each for name, each in self.routers.items() if name != router}
        kept = dict(list(others.items())[1 - _MAX_ROUTERS :])  # the most recent to report
        after = replace(self, routers={**kept, router: {**(known or {}), **counted}})
        if known is None:
            return after, {}
        none = Tokens()
        new = {
            model: now.since(then)
            for model, now in counted.items()
            if (then := known.get(model, none)) != now
        }
        return after, new
