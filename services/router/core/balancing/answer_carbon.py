"""Carbon of one more answer on an instance, learned from answers: energy x PUE x intensity.

Each step of a batch takes a fixed energy, and more with each answer in it: a line over the answers
generated at a time, by variant and class of GPU, as `TokenTimes` has it for times. One answer more
counts at the batch that instances are filled to, not at the present one. The first answer of a
batch takes up to fifty times the energy of another, so by present batches an instance that runs
would always come before one that does not: in a zone that has become dirty, it would run for ever.
And what differs between equal instances would be what one router sees of them, so that several
routers would not fill the same.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from services.kit.request_cost import Cost
from services.router.core.balancing.weigher import CarbonSignal, kind_of, known_intensities
from services.router.core.instance_state import InstanceState
from services.router.core.model import Instance
from services.router.core.regression import Regression

STEP: Final = math.log(1.25)
"""Energies whose ratio is smaller count the same: they are means of some dozens of texts, and each
change of the order leaves batches half full for a while."""

Price = Callable[[InstanceState], float]
"""Returns the carbon of a token of one more answer, gCO2e/kWh x J, on one scale for all."""


class _StepEnergy:
    """Energy of a step over the answers in it; `most`: answers at a time, the most seen."""

    def __init__(self) -> None:
        self._line = Regression()
        self._most = 0.0

    def add(self, answers: float, token_j: float) -> None:
        self._line.add(answers, answers * token_j)
        self._most = max(self._most, answers)

    def token_j(self) -> float:
        """Return the energy of a token where the most answers seen are generated at a time, J."""
        found = self._line.at(self._most) / self._most
        return math.exp(STEP * round(math.log(found) / STEP)) if found > 0 else 0.0


class AnswerCarbon:
    """Learns what a token takes, by variant and class of GPU, and prices it by zone."""

    def __init__(self) -> None:
        self._energies: dict[tuple[float, str], _StepEnergy] = {}

    def learn(self, instance: Instance, answers: float, cost: Cost) -> None:
        """Learn from the active energy of an answer.

        Args:
            instance: The instance that generated it.
            answers: Answers that it generated at a time meanwhile, >= 1.
            cost: Its cost, with its tokens; without, it is ignored.
        """
        tokens = cost.usage.input_tokens + cost.usage.output_tokens if cost.usage else 0
        if tokens > 0 and 0 < cost.energy_j < math.inf:
            energy = self._energies.setdefault(kind_of(instance), _StepEnergy())
            energy.add(answers, cost.energy_j / tokens)

    def price(self, states: Sequence[InstanceState], carbon: CarbonSignal) -> Price:
        """Return the price of one more answer on each of these instances.

        One of whose kind nothing is known counts as the mean of the others; where a zone's
        intensity is not known, all zones count the same.
        """
        known = {kind: energy.token_j() for kind, energy in self._energies.items()}
        usual_j = sum(known.values()) / len(known) if known else 1.0
        by_zone = known_intensities(carbon, (state.instance.zone for state in states))

        def of(state: InstanceState) -> float:
            instance = state.instance
            token_j = known.get(kind_of(instance), usual_j)
            return token_j * instance.pue * by_zone[instance.zone]

        return of
