"""An observed load as a scenario that the simulator reads, and the planner serves."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from services.cli.observe.scenario import scenario
from services.planner.core.strategies import REGISTRY
from services.simulator.loader import read
from tests.unit.cli.test_observe_advice import figures, gpu, server


def test_the_simulator_reads_an_observed_load(tmp_path: Path) -> None:
    """Rates, lengths and objectives are the observed ones; its policies exist."""
    seen = server(rate_rps=0.5, first_token_p95_s=0.2, token_p95_s=0.03, latency_p95_s=9.0)
    found = scenario(figures(gpu(0), gpu(1), servers=(seen,)))
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(found))
    setting = read(path)
    (model,) = setting.models
    assert (model.name, setting.deployment.models[model.name].demand_rps) == ("qwen-qwen3-8b", 0.5)
    assert setting.deployment.models[model.name].slo.latency_s == 9.0 * 1.2
    assert {policy.strategy for policy in setting.scenario.policies} <= set(REGISTRY)
    assert setting.deployment.nodes["here"].simulated == ("h100-80gb", "h100-80gb")


@pytest.mark.parametrize("factor", [1e-6, 0.1, 0.5, 1.0])
def test_what_was_faster_than_any_plan_is_an_objective_that_the_simulator_takes(
    tmp_path: Path, factor: float
) -> None:
    """Cached prompts and batches of one are faster than the formula: the model is not refused."""
    seen = server(
        rate_rps=0.5,
        first_token_p95_s=0.05 * factor,
        token_p95_s=0.005 * factor,
        latency_p95_s=factor,
    )
    path = tmp_path / "scenario.yaml"
    path.write_text(yaml.safe_dump(scenario(figures(gpu(0), servers=(seen,)))))
    (model,) = read(path).models
    assert model.slo_latency_s >= 1.2 * factor


def test_a_load_that_is_not_known_is_no_scenario() -> None:
    assert scenario(figures()) is None
    seen = figures(servers=(server(rate_rps=0.5),))
    assert scenario(seen) is not None
    assert scenario(replace(seen, gco2e_per_kwh=None)) is None
    assert scenario(figures(servers=(server(model="gpt-oss"),))) is None
    assert scenario(figures(servers=(server(requests=None),))) is None
