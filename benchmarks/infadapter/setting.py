"""The paper's setting (EuroMLSys'23, section 5): five ResNets on 20 CPU cores, p99 <= 750 ms."""

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from benchmarks._data import data_file
from benchmarks.infadapter.allocation import Candidate
from services.kit.config import InfAdapter as Weights

CORES = 20
BEFORE = {"152": 20}
"""Cores that run at first: the most accurate network, as large as can be."""

RESOURCE_WEIGHTS = (0.0125, 0.05, 0.2)
"""Weights that the paper's text calls beta, and its code and the published figures alpha."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The five networks, as known.

    Attributes:
        candidates: With planned capacities: a line through five measured sizes, times a safety
            factor, in whole requests, as the authors' code has it.
        measured_rps: By network and cores: load sustained with p99 <= SLO.
        p99_s: By network and cores: p99 latency at that load.
        slo_s: p99 objective.
        longest_load_s: Of all networks; LC is relative to it.
        loading_weight: gamma, of LC.
    """

    candidates: tuple[Candidate, ...]
    measured_rps: Mapping[str, Mapping[int, float]]
    p99_s: Mapping[str, Mapping[int, float]]
    slo_s: float
    longest_load_s: float
    loading_weight: float

    def weights(self, resources: float) -> Weights:
        """Return Eq. 1's weights for one of RESOURCE_WEIGHTS."""
        return Weights(resources=resources, loading=self.loading_weight / self.longest_load_s)

    @property
    def best_accuracy(self) -> float:
        """The most accurate network's."""
        return max(each.accuracy for each in self.candidates)


@cache
def setting() -> Setting:
    """Read profiles and constants.

    Raises:
        Skipped: They are not here.
    """
    constants = json.loads(data_file("infadapter/constants.json").read_text())
    measured, p99_s = _profiles(constants["slo_ms_p99"])
    return Setting(
        candidates=tuple(
            _candidate(constants, str(name), measured[str(name)]) for name in constants["variants"]
        ),
        measured_rps=measured,
        p99_s=p99_s,
        slo_s=constants["slo_ms_p99"] / 1e3,
        longest_load_s=max(constants["load_time_s"].values()),
        loading_weight=constants["beta_loading_cost"],
    )


def _candidate(constants: Any, name: str, measured_rps: Mapping[int, float]) -> Candidate:
    cores = constants["capacity_regression_train_cpus"]
    slope, start = np.polyfit(cores, [measured_rps[core] for core in cores], 1)
    sizes = range(constants["min_cpu_per_variant"], CORES + 1)
    return Candidate(
        name=name,
        accuracy=constants["accuracy"][name],
        load_s=constants["load_time_s"][name],
        capacity_rps={
            core: float(math.floor(constants["capacity_coef"] * (start + slope * core)))
            for core in sizes
        },
    )


def _profiles(slo_ms: int) -> tuple[dict[str, dict[int, float]], dict[str, dict[int, float]]]:
    measured: dict[str, dict[int, float]] = {}
    p99_s: dict[str, dict[int, float]] = {}
    with data_file("infadapter/capacity_result_Feb_21.csv").open() as lines:
        for row in csv.DictReader(lines):
            if row["SLA"] == str(slo_ms):
                name, cores = row["ARCH"], int(row["CPU"])
                measured.setdefault(name, {})[cores] = float(row["capacity"])
                p99_s.setdefault(name, {})[cores] = float(row["p99_latency"] or slo_ms) / 1e3
    return measured, p99_s
