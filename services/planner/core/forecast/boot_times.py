"""Time from a worker's start to its first answer, by variant: capacity has to start so early.

A server of a language model takes half a minute to minutes: it reads tens of gigabytes and captures
graphs. What rollouts took replaces what the deployment states (`load_s`).
"""

from collections.abc import Iterable
from typing import Final

from services.planner.core.model import Model

_WEIGHT: Final = 0.25  # of a shorter time; a longer one counts at once


class BootTimes:
    """Boot times, as stated and as measured.

    Args:
        models: The deployment's models.
    """

    def __init__(self, models: Iterable[Model]) -> None:
        self.measured_s: dict[tuple[str, str], float] = {}
        self._stated_s: dict[tuple[str, str], float] = {}
        self.configure(models)

    def configure(self, models: Iterable[Model]) -> None:
        """Replace the stated times; what was measured stays for the variants that do."""
        self._stated_s = {
            (model.name, variant.name): variant.load_s
            for model in models
            for variant in model.variants
        }
        self.measured_s = {
            key: took_s for key, took_s in self.measured_s.items() if key in self._stated_s
        }

    def observe(self, model: str, variant: str, took_s: float) -> None:
        """Add the time that a start took, s."""
        before_s = self.measured_s.get((model, variant), 0.0)
        weight = 1.0 if took_s >= before_s else _WEIGHT
        self.measured_s[model, variant] = before_s + weight * (took_s - before_s)

    def longest_s(self, model: str) -> float:
        """Return the boot time of the model's slowest variant, s; 0: nothing is known of it."""
        found = {key: took_s for key, took_s in self._stated_s.items() if key[0] == model}
        found |= {key: took_s for key, took_s in self.measured_s.items() if key[0] == model}
        return max(found.values(), default=0.0)
