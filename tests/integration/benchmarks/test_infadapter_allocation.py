"""InfAdapter's Eq. 1: the optimum, always."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.infadapter.allocation import Allocator, Candidate
from services.kit.config import InfAdapter as Weights
from services.kit.errors import InvalidArgument
from tests.support.paths import PUBLISHED

DATA = PUBLISHED / "infadapter"

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Case:
    """A question to the allocator."""

    candidates: list[Candidate]
    load_rps: float
    budget: int
    weights: Weights
    running: Sizes

    def worth(self, sizes: Sequence[int]) -> tuple[float, float]:
        """Return (served load, Eq. 1) of sizes, the most accurate filled first; 0: not running."""
        left_rps, accuracy, loading_s = self.load_rps, 0.0, 0.0
        paired = zip(self.candidates, sizes, strict=True)
        for each, units in sorted(paired, key=lambda pair: -pair[0].accuracy):
            taken = min(each.capacity_rps[units], left_rps) if units else 0.0
            left_rps -= taken
            accuracy += each.accuracy * taken
            if units and self.running.get(each.name) != units:
                loading_s = max(loading_s, each.load_s)
        served_rps = self.load_rps - left_rps
        price = self.weights.resources * sum(sizes) / self.budget + self.weights.loading * loading_s
        return served_rps, accuracy / served_rps - price if served_rps else -price

    def brute_force(self) -> tuple[float, float]:
        """Return (served load, Eq. 1) of the best of all choices of sizes."""
        possible = [
            self.worth(sizes)
            for sizes in product(*((0, *each.capacity_rps) for each in self.candidates))
            if sum(sizes) <= self.budget
        ]
        most_rps = max(served for served, _ in possible)
        return most_rps, max(value for served, value in possible if served >= most_rps - 1e-9)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Variants with any capacities: with holes, and not always more for more units."""
    capacities = st.dictionaries(st.integers(1, 6), st.integers(0, 60).map(float), max_size=6)
    return Case(
        candidates=[
            Candidate(
                name=f"v{index}",
                accuracy=draw(st.integers(50, 99)) / 100,
                load_s=draw(st.integers(0, 9)),
                capacity_rps=draw(capacities),
            )
            for index in range(draw(st.integers(1, 4)))
        ],
        load_rps=draw(st.integers(1, 120)),
        budget=draw(st.integers(1, 8)),
        weights=Weights(
            resources=draw(st.sampled_from([0.0, 0.0125, 0.05, 0.2, 1.0])),
            loading=draw(st.sampled_from([0.0, 0.001, 0.1])),
        ),
        running=draw(st.dictionaries(st.sampled_from(["v0", "v1", "gone"]), st.integers(1, 6))),
    )


@given(cases())
def test_nothing_is_better(case: Case) -> None:
    """Against every choice of sizes: the most load is served, and of those choices the best."""
    allocator = Allocator(case.candidates, case.budget, case.weights)
    found = allocator.allocate(case.load_rps, case.running)
    most_rps, best = case.brute_force()

    assert case.load_rps - found.unserved_rps == pytest.approx(most_rps)
    assert found.overloaded == (most_rps < case.load_rps)
    if most_rps > 0:
        assert found.objective == pytest.approx(best, abs=1e-9)


@given(cases())
def test_an_allocation_is_what_it_says(case: Case) -> None:
    """Sizes fit the budget, loads fit the sizes, and the objective is theirs."""
    allocator = Allocator(case.candidates, case.budget, case.weights)
    found = allocator.allocate(case.load_rps, case.running)
    sizes = [found.units.get(each.name, 0) for each in case.candidates]

    assert sum(sizes) <= case.budget
    for each in case.candidates:
        if each.name in found.units:
            capacity_rps = each.capacity_rps[found.units[each.name]]
            assert 0 < found.load_rps[each.name] <= capacity_rps + 1e-9
    served_rps = sum(found.load_rps.values())
    assert served_rps == pytest.approx(case.load_rps - found.unserved_rps)
    if served_rps:
        assert sum(found.shares.values()) == pytest.approx(1.0)
        _, value = replace(case, load_rps=served_rps).worth(sizes)
        assert found.objective == pytest.approx(value, abs=1e-9)


def resnets() -> list[Candidate]:
    """Return the paper's five ResNets on CPU cores; see `benchmarks.infadapter`."""
    if not DATA.is_dir():
        pytest.skip("InfAdapter's profiles are not beside the repository")
    constants = json.loads((DATA / "constants.json").read_text())
    with (DATA / "capacity_result_Feb_21.csv").open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["SLA"] == str(constants["slo_ms_p99"])]
    found = []
    for variant in map(str, constants["variants"]):
        measured = {
            int(row["CPU"]): float(row["capacity"]) for row in rows if row["ARCH"] == variant
        }
        cores = constants["capacity_regression_train_cpus"]
        slope, start = np.polyfit(cores, [measured[core] for core in cores], 1)
        found.append(
            Candidate(
                name=variant,
                accuracy=constants["accuracy"][variant],
                load_s=constants["load_time_s"][variant],
                capacity_rps={
                    core: float(math.floor(constants["capacity_coef"] * (start + slope * core)))
                    for core in range(constants["min_cpu_per_variant"], constants["max_cpu"] + 1)
                },
            )
        )
    return found


@pytest.mark.parametrize(
    ("load_rps", "units", "objective"),
    [
        (5, {"152": 3}, 0.77462),
        (20, {"152": 8}, 0.76212),
        (75, {"50": 10}, 0.73550),
        (110, {"50": 14}, 0.72550),
        (150, {"50": 19}, 0.71300),
        (200, {"18": 4, "50": 16}, 0.68788),
        (300, {"18": 13, "50": 7}, 0.65825),
    ],
)
def test_the_papers_setting_has_its_known_optima(
    load_rps: float, units: Sizes, objective: float
) -> None:
    """ResNets on 20 cores, beta 0.05, ResNet-152 on all cores before."""
    weights = Weights(resources=0.05, loading=0.001 / 8.52)
    found = Allocator(resnets(), 20, weights).allocate(load_rps, {"152": 20})

    assert found.units == units
    assert found.objective == pytest.approx(objective, abs=1e-5)


def test_above_capacity_what_can_be_served_is() -> None:
    """The shipped solver stops answering above 386 req/s."""
    found = Allocator(resnets(), 20, Weights(resources=0.05)).allocate(1000.0)

    assert found.overloaded
    assert found.units == {"18": 20}
    assert found.unserved_rps == pytest.approx(1000.0 - 386.0)
    assert found.shares == {"18": pytest.approx(1.0)}


PAIR = (
    Candidate("small", 0.7, 5.0, {1: 10.0, 2: 20.0, 3: 30.0}),
    Candidate("large", 0.8, 9.0, {1: 4.0, 2: 8.0, 3: 12.0}),
)


def test_the_most_accurate_variant_is_filled_first() -> None:
    found = Allocator(PAIR, 4, Weights(resources=0.0, loading=0.0)).allocate(18.0)

    assert found.units == {"large": 3, "small": 1}
    assert found.load_rps == {"large": 12.0, "small": 6.0}
    assert list(found.load_rps) == ["large", "small"]


def test_a_size_that_runs_stays_while_loading_another_costs_more_than_its_units() -> None:
    """A size more than is needed, for as long as the loading price outweighs it."""
    allocators = [Allocator(PAIR, 4, Weights(resources=0.1, loading=p)) for p in (0.0, 0.01)]

    assert [dict(each.allocate(4.0, {"large": 2}).units) for each in allocators] == [
        {"large": 1},
        {"large": 2},
    ]


def test_no_load_needs_nothing() -> None:
    found = Allocator(PAIR, 4, Weights()).allocate(0.0)

    assert (found.units, found.shares, found.overloaded) == ({}, {}, False)


def test_without_any_feasible_size_all_load_is_unserved() -> None:
    found = Allocator([Candidate("slow", 0.9, 1.0, {})], 4, Weights()).allocate(10.0)

    assert (found.units, found.unserved_rps) == ({}, 10.0)


@pytest.mark.parametrize("load_rps", [-1.0, float("nan"), float("inf")])
def test_a_load_that_is_none_is_refused(load_rps: float) -> None:
    with pytest.raises(InvalidArgument, match="load_rps"):
        Allocator(PAIR, 4, Weights()).allocate(load_rps)


def test_a_budget_of_nothing_and_a_name_used_twice_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="budget"):
        Allocator(PAIR, 0, Weights())
    with pytest.raises(InvalidArgument, match="names"):
        Allocator([PAIR[0], PAIR[0]], 4, Weights())


@pytest.mark.parametrize(
    ("accuracy", "load_s", "capacity_rps"),
    [
        (float("nan"), 1.0, {1: 1.0}),
        (0.5, -1.0, {1: 1.0}),
        (0.5, 1.0, {1: math.inf}),
        (0.5, 1.0, {0: 1.0}),
    ],
)
def test_a_candidate_without_sane_numbers_is_refused(
    accuracy: float, load_s: float, capacity_rps: dict[int, float]
) -> None:
    with pytest.raises(InvalidArgument, match="odd"):
        Candidate("odd", accuracy, load_s, capacity_rps)
