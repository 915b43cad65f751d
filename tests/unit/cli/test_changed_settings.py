"""Settings changed at run time, as sections of the deployment file."""

from services.cli.plan.settings import sections_of
from services.kit.config import Deployment


def test_changes_by_path_are_sections_that_the_deployment_file_may_have() -> None:
    """A model's name may have dots; a variant that was removed is null."""
    variant = {"file": "x", "accuracy": 0.9, "profile": {"kind": "analytic", "gmacs_per_item": 1}}
    model = {"slo": {"latency_s": 1}, "demand_rps": 1, "variants": {"a": variant, "b": variant}}
    deployment = Deployment.model_validate(
        {
            "version": "v1",
            "carbon": {"zones": {"Z": {"source": {"kind": "synthetic"}}}},
            "models": {"llama-3.1": model},
            "nodes": {"n": {"zone": "Z", "simulated": ["a100-40gb"]}},
        }
    )
    values = {
        "models.llama-3.1.slo.latency_s": 0.3,
        "models.llama-3.1.variants.b": None,
        "planner.strategy": "co2opt",
    }

    assert sections_of(deployment, values) == {
        "models": {"llama-3.1": {"slo": {"latency_s": 0.3}, "variants": {"b": None}}},
        "planner": {"strategy": "co2opt"},
    }
