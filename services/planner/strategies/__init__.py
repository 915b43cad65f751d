"""Strategies: pure functions from a problem to a configuration.

A new one is a module here and a line in _ALL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from services.planner.domain import Configuration, Problem
from services.planner.strategies.annealing import annealing
from services.planner.strategies.base import base
from services.planner.strategies.co2opt import co2opt
from services.planner.strategies.exact import exact
from services.planner.strategies.infadapter import infadapter
from services.planner.strategies.one_piece import in_one_piece
from services.planner.strategies.oracle import oracle
from services.planner.strategies.parvagpu.strategy import (
    parvagpu,
    parvagpu_single,
    parvagpu_unoptimized,
)
from services.planner.strategies.random_search import random_search

Strategy = Callable[[Problem], Configuration]

PIPELINED = frozenset({"exact"})
"""Those that plan pipelines; the others leave them out."""

_ALL: Mapping[str, Strategy] = {
    "annealing": annealing,
    "base": base,
    "co2opt": co2opt,
    "exact": exact,
    "infadapter": infadapter,
    "oracle": oracle,
    "parvagpu": parvagpu,
    "parvagpu-single": parvagpu_single,
    "parvagpu-unoptimized": parvagpu_unoptimized,
    "random": random_search,
}

REGISTRY: Mapping[str, Strategy] = {
    name: each if name in PIPELINED else in_one_piece(each) for name, each in _ALL.items()
}
