"""Every setting of a deployment is simulated, means nothing in a simulation, or is refused."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from services.kit.config import Deployment
from services.simulator.scenario import Scenario
from services.simulator.supported import unsupported
from tests.support.scenarios import SMALL, merged

PIPELINE = {
    "accuracy": 0.5,
    "stages": ["a.onnx", "b.onnx"],
    "profile": {"kind": "analytic", "gmacs_per_item": 4},
}

SERVER = {"kind": "openai", "command": ["vllm", "serve", "--port", "{port}"]}

STEERED = {
    "slo": {"latency_s": 60},
    "demand_rps": 1,
    "variants": {
        "v": {
            "file": "model",
            "accuracy": 0.5,
            "runtime": SERVER,
            "profile": {"kind": "language", "parameters_b": 8},
        }
    },
    "servers": {"p": {"variant": "v", "gpu": "a100-40gb", "zone": "Z", "addresses": ["h:1"]}},
}

PEER = {"planner": "far:1", "router": "far:2"}

VTN = {"url": "https://vtn.example/openadr3/3.1.0", "site": "s"}

REFUSED: Mapping[str, Mapping[str, Any]] = {
    "nodes.simulated": {"nodes": {"n": {"simulated": ["b9000"]}}},
    "nodes.cpu": {"nodes": {"n": {"simulated": None, "cpu": {"cores": 2}}}},
    "nodes.gpus": {"nodes": {"n": {"gpus": ["GPU-1"]}}},
    "nodes.clock_loop": {"nodes": {"n": {"clock_loop": "miad"}}},
    "nodes.workers.load_timeout_s": {"nodes": {"n": {"workers": {"load_timeout_s": 1}}}},
    "models.discipline": {"models": {"m": {"discipline": "ssjf"}}},
    "models.variants.stages": {"models": {"m": {"variants": {"v": PIPELINE}}}},
    "models.variants.runtime": {
        "models": {
            "m": {
                "variants": {"small": {"runtime": {"kind": "external", "address": "localhost:1"}}}
            }
        }
    },
    "planner.online.enabled": {"planner": {"online": {"enabled": True}}},
    "planner.accounting.embodied": {"planner": {"accounting": {"embodied": {}}}},
    "planner.carbon_budgets": {"planner": {"carbon_budgets": [{"kg": 1, "per": "day"}]}},
    "router.processes": {"router": {"processes": 2}},
    "join": {"join": {"zone": "Z"}},
    "grid.openadr": {
        "sites": {"s": {"nodes": ["n"], "power_budget_w": 400}},
        "grid": {"openadr": {"vtn": VTN}},
    },
    "grid.mqtt": {"mqtt": {"broker": "h:1"}, "grid": {"mqtt": True}},
    "grid.prices": {"grid": {"prices": {"Z": {"kind": "csv", "path": "prices.csv"}}}},
    "regions": {"regions": {"name": "here", "peers": {"there": PEER}}},
    "models.servers": {"models": {"steered": STEERED}},
}
"""Settings with a value that cannot be simulated."""

SIMULATED = [
    "carbon.zones.source",
    "carbon.zones.signal",
    "carbon.zones.average_window_s",
    "carbon.replay.start",
    "carbon.replay.speedup",
    "nodes.zone",
    "nodes.allow_mig_mode",
    "nodes.control",
    "nodes.pue",
    "sites.nodes",
    "sites.power_budget_w",
    "sites.host_power_w",
    "models.slo.percentile",
    "models.slo.latency_s",
    "models.slo.ttft_s",
    "models.slo.tpot_s",
    "models.demand_rps",
    "models.demand_min_rps",
    "models.dispersion.at_1s",
    "models.dispersion.at_10s",
    "models.instance_choice",
    "models.intensity_threshold",
    "models.max_queue",
    "models.max_queue_mib",
    "models.default_deadline_s",
    "models.hedge_after_s",
    "models.overload_weight",
    "models.replicas_min",
    "models.spread",
    "models.survive",
    "models.variants.accuracy",
    "models.variants.profile",
    "models.variants.load_s",
    "models.variants.max_batch",
    "models.variants.clock_sensitivity",
    "models.variants.gpus",
    "models.variants.parallel.tensor",
    "models.variants.parallel.pipeline",
    "models.variants.parallel.data",
    "models.variants.parallel.expert",
    "planner.strategy",
    "planner.online.evaluate_s",
    "planner.horizon.length_s",
    "planner.horizon.step_s",
    "planner.load_forecast.interval_s",
    "planner.load_forecast.coverage",
    "planner.batch_sizes",
    "planner.max_processes",
    "planner.clock_ratios",
    "planner.placement",
    "planner.time_limit_s",
    "planner.seed",
    "planner.maintenance.days",
    "planner.maintenance.start",
    "planner.maintenance.length_s",
    "planner.objective.goals.clover",
    "planner.objective.goals.fewest_gpus",
    "planner.objective.goals.infadapter",
    "planner.objective.infadapter.accuracy",
    "planner.objective.infadapter.resources",
    "planner.objective.infadapter.loading",
    "planner.objective.carbon_weight",
    "planner.objective.baseline_intensity_gco2e_per_kwh",
    "planner.objective.accuracy_floor",
    "planner.objective.accuracy_mean.at_least",
    "planner.objective.accuracy_mean.over",
    "planner.objective.kind",
    "planner.objective.carbon_price_eur_per_t",
    "planner.objective.accuracy_value_eur",
    "planner.objective.latency_share",
    "planner.objective.max_utilisation",
    "planner.objective.latency_rule",
    "planner.objective.switch_price",
    "planner.objective.layout_price",
    "planner.objective.host_idle_w",
    "planner.objective.park_idle_gpus",
    "planner.objective.overload",
    "planner.triggers.intensity_change",
    "planner.triggers.intensity_dwell_s",
    "planner.triggers.demand_change",
    "planner.triggers.scale_down_s",
    "planner.triggers.plans_per_hour",
    "planner.triggers.min_interval_s",
    "planner.triggers.settle_s",
    "planner.triggers.answers_settle_s",
    "router.report_interval_s",
    "router.max_attempts",
    "router.max_queue_mib",
    "router.default_timeout_s",
    "router.retry_share",
    "router.retry_burst",
]

NO_MEANING = {
    "on the wire": """
        carbon.health nodes.health planner.health router.health
        version log_level tls access carbon.listen carbon.metrics nodes.listen nodes.metrics
        nodes.worker_host planner.listen planner.metrics router.listen router.metrics
        router.http_listen
        router.max_request_bytes router.max_stream_requests router.compression
        router.slo_windows_s
        carbon.address nodes.address planner.address
        router.address router.token_listen router.quotas rpc.transport
        node router.max_requests router.max_connections router.max_connection_requests
        carbon.max_connection_requests nodes.max_connection_requests
        planner.max_connection_requests
        models.accuracy_unit mqtt console.listen console.allow_changes
        router.picker_listen router.picker_connection_requests
    """,
    "files": """
        carbon.cache_dir nodes.state_dir nodes.worker_user models.variants.file planner.database
        models.variants.uri models.variants.sha256 model_cache.folder model_cache.max_mib
        planner.accounting.retention_d console.token_file router.routing_file models_file
    """,
    "objects of a Kubernetes cluster": """
        planner.kubernetes.models_map planner.kubernetes.parked_nodes
    """,
    "nothing fails": """
        carbon.zones.hold_s nodes.orphan_timeout_s nodes.leave_timeout_s planner.standby
        nodes.workers.memory_limit_mib nodes.workers.max_failures
        nodes.workers.failure_window_s router.worker_dead_after_s
    """,
    "requests of files": "batch",
    "no request of a scenario can wait": """
        router.waiting.max_requests router.waiting.max_mib router.waiting.timeout_s
        router.waiting.headroom router.waiting.patience_s
    """,
    "no grid event is announced": """
        grid.levels grid.emergency_level grid.max_length_s grid.max_ahead_s
    """,
    "of peer regions, which are refused": """
        models.regions models.max_extra_latency_s models.region_weights
    """,
    "no process of others runs": "nodes.observe nodes.steer_clocks",
    "no provider is queried": "carbon.zones.provider_forecast",
    "of real GPUs": "nodes.allow_clocks nodes.allow_power_limits nodes.mps nodes.maker",
    "of a loop or discipline that is refused": """
        nodes.clock_floor models.overtaking_s predictor
    """,
    "all requests are of one client": "router.fair_clients",
    "the agents' split of idle energy": "nodes.idle_share",
}


def fields(section: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield the paths of all settings; a choice of several sections is one setting."""
    for name, field in section.model_fields.items():
        inner = list(sections(field.annotation))
        if len(inner) == 1 and f"{path}{name}" not in LEAVES:
            yield from fields(inner[0], f"{path}{name}.")
        else:
            yield f"{path}{name}"


LEAVES = {
    "batch",
    "tls",
    "access",
    "router.quotas",
    "mqtt",
    "predictor",
    "nodes.cpu",
    "nodes.mps",
    "nodes.steer_clocks",
    "join",
    "node",
    "grid.openadr",
    "grid.prices",
    "regions",
    "models.servers",
    "models.variants.stages",
    "planner.accounting.embodied",
    "planner.carbon_budgets",
}


def sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from sections(each)


def test_every_setting_is_simulated_or_refused_or_means_nothing() -> None:
    """A new setting must be sorted into one of the three."""
    means_nothing = [name for names in NO_MEANING.values() for name in names.split()]
    known = [*SIMULATED, *means_nothing, *REFUSED]

    assert len(known) == len(set(known))
    assert set(fields(Deployment)) == set(known)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_simulated_is_refused_by_name(name: str) -> None:
    scenario = Scenario(**merged(SMALL, {"deployment": REFUSED[name], "detail": "sampled"}))
    assert isinstance(scenario.deployment, Deployment)

    found = dict(unsupported(scenario, scenario.deployment))

    assert len(found) == 1
    (where,) = found
    wanted = name.replace("nodes.cpu", "nodes.simulated").split(".")
    assert where[0] == "deployment"
    assert [part for part in where[1:] if part in wanted] == wanted


def test_a_policy_of_what_cannot_be_simulated_is_refused_by_name() -> None:
    policies = ["base", {"strategy": "exact", "discipline": "priority"}]
    scenario = Scenario(**merged(SMALL, {"policies": policies}))
    assert isinstance(scenario.deployment, Deployment)

    found: Mapping[Any, str] = dict(unsupported(scenario, scenario.deployment))

    assert list(found) == [("policies", 1, "discipline")]
    assert "use fcfs or edf" in found["policies", 1, "discipline"]


@pytest.mark.parametrize(
    ("variants", "changes", "where"),
    [
        (("small",), {}, ("models", "m", "variants")),
        (("small", "large"), {"instance_choice": "prefix"}, ("models", "m", "instance_choice")),
        (("small", "large"), {}, None),
    ],
    ids=["some variants only", "a choice by texts", "all of it is known"],
)
def test_of_language_models_only_choices_by_length_are_simulated(
    variants: tuple[str, ...], changes: dict[str, Any], where: tuple[str, ...] | None
) -> None:
    """A scenario knows how long texts are, and not what they say."""
    language = {"runtime": SERVER, "profile": {"kind": "language", "parameters_b": 8}}
    deployment = json.loads(json.dumps(SMALL["deployment"]))
    model = deployment["models"]["m"] | changes
    deployment["models"]["m"] = model
    for name in variants:
        model["variants"][name] |= language
    scenario = Scenario(**{**SMALL, "deployment": deployment})
    assert isinstance(scenario.deployment, Deployment)

    found = [path for path, _ in unsupported(scenario, scenario.deployment)]

    assert found == ([("deployment", *where)] if where else [])


def test_texts_need_a_language_profile_and_a_language_model() -> None:
    """The variant's profile, and the scenario's lengths, are refused where they mean nothing."""
    texts = Scenario(**merged(SMALL, {"texts": {"m": {"answer_cv": 0}}}))
    small = {"small": {"runtime": SERVER}, "large": {"runtime": SERVER}}
    served = Scenario(**merged(SMALL, {"deployment": {"models": {"m": {"variants": small}}}}))
    assert isinstance(texts.deployment, Deployment)
    assert isinstance(served.deployment, Deployment)

    assert [path for path, _ in unsupported(texts, texts.deployment)] == [("texts", "m")]
    assert [path[-2:] for path, _ in unsupported(served, served.deployment)] == [
        ("small", "profile"),
        ("large", "profile"),
    ]
