"""Energy that one more request adds to the batch it runs in, learned from answers.

A step, or a batch, takes a fixed energy and more with each request in it: a line over the requests
in it. The slope is what one more adds: others need as many steps as without it. Attributed energy
is the whole over all: beside others a request adds less than it is attributed.
"""

import math
from collections.abc import Hashable
from typing import Final

from services.kit.request_cost import Cost
from services.router.core.regression import Regression

_KNOWN: Final = 16.0
_SPREAD: Final = 0.25
"""Standard deviation of the loads, over their mean, from which on the slope counts."""


class MarginalEnergy:
    """Learns by kind of instance: a variant on a class of GPU."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, Regression] = {}

    def learn(self, kind: Hashable, cost: Cost, load: float) -> None:
        """Learn from an answer.

        Args:
            kind: Kind of the instance that gave it.
            cost: Its cost.
            load: Requests that the instance held meanwhile, where answers are texts.
        """
        units, together = _units(cost, load)
        if units > 0 and 0 < cost.energy_j < math.inf:
            line = self._lines.setdefault(kind, Regression())
            line.add(together, cost.energy_j / units * together)

    def of(self, kind: Hashable, cost: Cost, load: float) -> float | None:
        """Return the energy that an answer added, J; None: not known yet.

        Between 0 and what it is attributed; arguments as of `learn`.
        """
        line = self._lines.get(kind)
        if line is None or line.weight < _KNOWN or line.variance <= (_SPREAD * line.size) ** 2:
            return None
        units, _ = _units(cost, load)
        return min(max(units * line.covariance / line.variance, 0.0), cost.energy_j)


def _units(cost: Cost, load: float) -> tuple[float, float]:
    """Return the parts of an answer that take a step each, and how many share a step."""
    if cost.usage is not None:
        return float(cost.usage.output_tokens), max(load, 1.0)
    return float(cost.items), float(cost.batch_size)
