"""Settings that operators change at run time."""

from datetime import UTC, datetime
from typing import Any

import pytest

from cinquefoil.planner.v1.records import ChangedSetting
from services.kit import config
from services.kit.config import carbon_sources
from services.kit.errors import InvalidArgument
from services.planner.core.overrides import overridden, still_valid

AT = datetime(2026, 11, 23, tzinfo=UTC)


def deployment(*variants: str) -> config.Deployment:
    """Return a deployment of one model, whose name has a dot in it."""
    static = carbon_sources.StaticSource(kind="static", intensity_gco2e_per_kwh=100)
    profile = config.AnalyticProfile(kind="analytic", gmacs_per_item=1.0)
    return config.Deployment(
        version="v1",
        carbon=config.Carbon(zones={"Z": config.Zone(source=static)}),
        nodes={"n": config.Node(zone="Z", simulated=("t4",))},
        models={
            "llama-3.1": config.Model(
                slo=config.Slo(latency_s=0.2),
                demand_rps=10,
                variants={
                    name: config.Variant(file="m.onnx", accuracy=90, profile=profile)
                    for name in variants or ("small", "large")
                },
            )
        },
    )


def test_settings_of_models_and_the_objective_change_and_the_rest_stays() -> None:
    before = deployment()
    now = overridden(
        before,
        {
            "models.llama-3.1.slo.latency_s": 0.5,
            "planner.objective.goals.fewest_gpus": 2,
            "planner.strategy": "annealing",
        },
    )

    assert now.models["llama-3.1"].slo == config.Slo(latency_s=0.5)
    assert now.planner.objective.goals == config.Goals(fewest_gpus=2)
    assert now.planner.strategy == "annealing"
    assert now.models["llama-3.1"].variants == before.models["llama-3.1"].variants
    assert overridden(before, {}) == before


def test_a_variant_can_be_removed() -> None:
    now = overridden(deployment(), {"models.llama-3.1.variants.large": None})

    assert list(now.models["llama-3.1"].variants) == ["small"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"models.llama-3.1.slo.latency_s": -1}, "models.llama-3.1.slo.latency_s: "),
        ({"models.llama-3.1.slo.latency": 1}, "no setting 'latency'; there is percentile"),
        ({"models.other.demand_rps": 1}, "no setting 'other.demand_rps'; there is llama-3.1"),
        ({"models.llama-3.1.variants.large.file": "/etc/passwd"}, "cannot be changed at run time"),
        ({"models.llama-3.1.variants.large": {"file": "x"}}, "cannot be changed at run time"),
        ({"planner.database": "x"}, "cannot be changed at run time"),
        ({"access": {"insecure": True}}, "cannot be changed at run time"),
        (
            {"planner.objective": None},
            "cannot be removed; models, variants and planner.objective.accuracy_mean can",
        ),
        ({"models.llama-3.1": None}, "models: "),
        ({"planner.strategy": "magic"}, "planner.strategy: "),
        ({"planner.objective.carbon_weight": "much"}, "planner.objective.carbon_weight: "),
        ({"": 1}, "cannot be changed at run time"),
    ],
)
def test_what_cannot_be_is_refused_by_its_path(values: dict[str, Any], message: str) -> None:
    """Files, commands, addresses and access are never an operator's of the planner's API."""
    with pytest.raises(InvalidArgument) as caught:
        overridden(deployment(), values)

    assert message in caught.value.message, caught.value.message


TABLE = {"path": "/etc/passwd", "gpu": "t4", "gmacs_per_item": 1}


def section(profile: dict[str, Any]) -> dict[str, Any]:
    """A model's section as JSON has it."""
    variants = {"v1.0": {"file": "/a.onnx", "accuracy": 0.9, "profile": profile}}
    return {"slo": {"latency_s": 1}, "demand_rps": 5, "variants": variants}


def test_a_dry_run_may_add_a_model_and_nothing_else_may() -> None:
    """A model's name may have dots; an order of an operator never brings a file."""
    values = {"models.v2.net": section({"kind": "analytic", "gmacs_per_item": 2})}

    now = overridden(deployment(), values, may_add=True)

    assert list(now.models) == ["llama-3.1", "v2.net"]
    assert now.models["v2.net"].demand_rps == 5
    with pytest.raises(InvalidArgument, match="no setting"):
        overridden(deployment(), values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"models.b": section({"kind": "table", **TABLE})},
            "models.b.variants.v1.0.profile.kind: of a model that is not in the file must be",
        ),
        ({"models.b": section({"kind": "analytic"})}, "models.b.variants.v1.0.profile"),
        ({"models.llama-3.1": section({})}, "cannot be changed at run time"),
    ],
)
def test_a_dry_run_reads_no_tables_and_changes_no_files(
    values: dict[str, Any], message: str
) -> None:
    """Errors would reveal the contents of a file on the planner's machine."""
    with pytest.raises(InvalidArgument) as caught:
        overridden(deployment(), values, may_add=True)

    assert message in caught.value.message, caught.value.message


def test_what_a_changed_file_does_not_allow_any_more_is_dropped_and_the_rest_kept() -> None:
    """The variant that was removed by order is the only one of the new file."""
    overrides = {
        "models.llama-3.1.variants.large": ChangedSetting(
            "models.llama-3.1.variants.large", None, "ada", AT
        ),
        "models.llama-3.1.demand_rps": ChangedSetting("models.llama-3.1.demand_rps", 20, "ada", AT),
    }

    kept, dropped = still_valid(deployment("large"), overrides)

    assert list(kept) == ["models.llama-3.1.demand_rps"]
    assert list(dropped) == ["models.llama-3.1.variants.large"]
