"""Values that a scenario file may have, and reports of its mistakes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from services.kit.config.loader import ConfigError
from services.kit.errors import InvalidArgument
from services.simulator.loader import read
from services.simulator.report.report import chosen
from tests.support.paths import ROOT
from tests.support.scenarios import ScenarioOf

Write = Callable[[Mapping[str, Any]], Path]

PIPELINE = {
    "stages": ["a.onnx", "b.onnx"],
    "accuracy": 0.9,
    "profile": {"kind": "analytic", "gmacs_per_item": 40},
}
EXAMPLES = ROOT / "examples/scenarios"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_can_be_read(path: Path) -> None:
    assert read(path).models


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"durations": 5}, "durations", "unknown key"),
        ({"duration_s": -1}, "duration_s", "greater than 0"),
        ({"policies": ["bset"]}, "bset", "must be 'annealing'"),
        ({"load": {"n": {"kind": "constant", "rate_rps": 1}}}, "n", "no model 'n'; it has m"),
        ({"load": {"m": {"kind": "constant", "rate_rps": 1, "rps": 1}}}, "rps", "unknown key"),
        (
            {"carbon": {"Y": {"kind": "static", "intensity_gco2e_per_kwh": 1}}},
            "Y",
            "no zone 'Y'; it has Z",
        ),
        ({"deployment": {"nodes": {"n": {"simulated": None}}}}, "simulated", "GPU types"),
        ({"deployment": {"nodes": {"n": {"simulated": ["a1000"]}}}}, "simulated", "a100-40gb"),
        ({"sampling": {"window_s": 400}}, "sampling", "window_s must be < period_s"),
        (
            {"deployment": {"models": {"m": {"variants": {"cut": PIPELINE}}}}},
            "stages",
            "pipelines cannot be simulated",
        ),
    ],
)
def test_a_mistake_is_reported_with_its_line(
    write: Write, changes: Mapping[str, Any], key: str, message: str
) -> None:
    path = write(changes)

    with pytest.raises(ConfigError) as caught:
        read(path)

    mistake = next(each for each in caught.value.mistakes if message in each.message)
    assert path.read_text().splitlines()[mistake.line - 1].strip(" -").startswith(key)


def test_two_policies_of_one_name_are_refused(write: Write) -> None:
    with pytest.raises(ConfigError, match="two are called 'base'"):
        read(write({"policies": ["base", {"strategy": "base", "carbon_weight": 0.2}]}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("t,rps\n0,5\n1,x\n", "line 3: rps: must be a number >= 0, got 'x'"),
        ("t,rps\n0,5\n1,-1\n", "line 3: rps: must be a number >= 0, got '-1'"),
        ("t,rps\n0,nan\n", "line 2: rps: must be a number >= 0, got 'nan'"),
        ("t,load\n0,5\n", "line 1: header: no column 'rps': t, load"),
        ("t,rps\n", "line 1: file: has a header but no values"),
    ],
)
def test_a_bad_trace_is_reported_with_its_line(write: Write, content: str, message: str) -> None:
    path = write({"load": {"m": {"kind": "trace", "path": "load.csv"}}})
    (path.parent / "load.csv").write_text(content)

    with pytest.raises(ConfigError) as caught:
        read(path)

    assert message in str(caught.value)


def test_a_missing_trace_is_reported(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"load\.csv: file: cannot be read"):
        read(write({"load": {"m": {"kind": "trace", "path": "load.csv"}}}))


def test_recorded_arrivals_must_be_in_order(write: Write) -> None:
    path = write({"load": {"m": {"kind": "recorded", "path": "log.csv"}}})
    (path.parent / "log.csv").write_text("arrival_s\n2\n1\n")

    with pytest.raises(InvalidArgument, match="order of time"):
        read(path)


def test_a_policy_changes_only_what_it_says(scenario: ScenarioOf) -> None:
    setting = scenario(
        policies=[{"name": "p", "strategy": "exact", "carbon_weight": 0.3, "horizon_s": 60}]
    )
    before = setting.deployment

    after = setting.scenario.policies[0].applied(before)

    planner = after.planner
    assert planner.strategy == "exact"
    assert planner.objective == before.planner.objective.model_copy(update={"carbon_weight": 0.3})
    assert planner.horizon.length_s == 60
    assert after.models == before.models


def test_a_weight_takes_the_place_of_a_mean_accuracy(scenario: ScenarioOf) -> None:
    """As an operator's order does live: beside a mean a weight would be without effect."""
    mean = {"accuracy_mean": {"at_least": 0.98}, "accuracy_floor": 0.9}
    setting = scenario(
        policies=[{"name": "p", "strategy": "exact", "carbon_weight": 0.3}, "exact"],
        deployment={"planner": {"objective": mean}},
    )
    weighed, kept = (each.applied(setting.deployment) for each in setting.scenario.policies)

    assert weighed.planner.objective.accuracy_mean is None
    assert weighed.planner.objective.accuracy_floor == 0.9
    assert kept.planner.objective == setting.deployment.planner.objective


def test_policies_are_chosen_by_their_name_or_by_strategy(scenario: ScenarioOf) -> None:
    setting = scenario(
        policies=["base", {"name": "green", "strategy": "exact", "carbon_weight": 1}]
    )

    assert [policy.label for policy in chosen(setting, ())] == ["base", "green"]
    assert [policy.strategy for policy in chosen(setting, ["green", "co2opt"])] == [
        "exact",
        "co2opt",
    ]
    with pytest.raises(InvalidArgument, match="no policy or strategy 'blue'; there are base"):
        chosen(setting, ["blue"])
