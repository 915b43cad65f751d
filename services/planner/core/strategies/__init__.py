"""Strategies: pure functions from a problem to a configuration.

A new one is a module here and a line in _ALL.
"""

from collections.abc import Callable, Mapping

from services.planner.core.model import Configuration, Problem
from services.planner.core.strategies.annealing import annealing
from services.planner.core.strategies.base import base
from services.planner.core.strategies.co2opt import co2opt
from services.planner.core.strategies.exact import exact
from services.planner.core.strategies.infadapter import infadapter
from services.planner.core.strategies.oracle import oracle
from services.planner.core.strategies.parvagpu.strategy import parvagpu
from services.planner.core.strategies.random_search import random_search
from services.planner.core.strategies.single_slices import on_single_slices
from services.planner.core.strategies.within_budgets import within_budgets

Strategy = Callable[[Problem], Configuration]

COMPLETE = frozenset({"exact"})
"""Strategies that plan pipelines and models on several GPUs; the others leave them out."""

REDUNDANT = frozenset({"exact"})
"""Strategies that choose segments with a view to the loss of GPUs and nodes."""

BY_OBJECTIVE = frozenset({"annealing", "exact", "oracle", "random"})
"""Strategies that look for the best objective; the others decide by a rule of their own."""

_ALL: Mapping[str, Strategy] = {
    "annealing": annealing,
    "base": base,
    "co2opt": co2opt,
    "exact": exact,
    "infadapter": infadapter,
    "oracle": oracle,
    "parvagpu": parvagpu,
    "random": random_search,
}

REGISTRY: Mapping[str, Strategy] = {
    name: within_budgets(each if name in COMPLETE else on_single_slices(each))
    for name, each in _ALL.items()
}
