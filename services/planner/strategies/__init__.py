"""Strategies: pure functions from a problem to a configuration.

A new one is a module here and a line in REGISTRY.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from services.planner.domain import Configuration, Problem
from services.planner.strategies.annealing import annealing
from services.planner.strategies.base import base
from services.planner.strategies.co2opt import co2opt
from services.planner.strategies.exact import exact

Strategy = Callable[[Problem], Configuration]

REGISTRY: Mapping[str, Strategy] = {
    "annealing": annealing,
    "base": base,
    "co2opt": co2opt,
    "exact": exact,
}
