"""Keys, networks and limits that compose.yaml gives each container."""

import re
from typing import Any

import pytest
import yaml

from services.kit.config.loader import load
from tests.support.paths import ROOT

COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def keys_of(service: str) -> set[str]:
    """Return the volumes with keys that a service mounts."""
    return {each.partition(":")[0] for each in SERVICES[service]["volumes"] if each[:3] == "pki"}


def test_each_service_mounts_its_own_keys_only_and_none_the_authority_s() -> None:
    assert {name: keys_of(name) for name in SERVICES if name not in {"pki", "mosquitto"}} == {
        "models": set(),
        "carbon": {"pki-carbon"},
        "planner": {"pki-planner"},
        "gpuagent": {"pki-agent", "pki-worker"},
        "predictor": {"pki-predictor"},
        "router": {"pki-router"},
        "console": {"pki-operator"},
        "cli": {"pki-operator"},
    }


def test_each_service_runs_an_image_of_its_own_that_the_dockerfile_makes() -> None:
    """The command line, certificates and training share the image of everything."""
    stages = re.findall(r"^FROM base AS (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for name, settings in SERVICES.items():
        if name == "mosquitto":
            continue
        target = settings["build"]["target"]
        assert target in stages
        image = "cinquefoil" if target == "all" else f"cinquefoil-{target}"
        assert settings["image"] == image + ":${TAG:-latest}"
        assert (target == "all") == (name in {"models", "pki", "cli"})


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_is_limited_and_has_no_right_it_does_not_need(service: str) -> None:
    settings = SERVICES[service]
    assert {"mem_limit", "pids_limit"} <= settings.keys()
    assert settings["cap_drop"] == ["ALL"]
    assert settings["read_only"]
    assert all(port.startswith("127.0.0.1:") for port in settings.get("ports", ()))


def test_a_client_s_network_reaches_the_router_only() -> None:
    """Of our services: Mosquitto, which is there for trying, publishes its port."""
    on_edge = {name for name, each in SERVICES.items() if "edge" in each.get("networks", ())}
    assert on_edge == {"router", "mosquitto"}
    assert [name for name, each in SERVICES.items() if "pages" in each.get("networks", ())] == [
        "console"
    ]
    assert COMPOSE["networks"]["control"]["internal"]
    assert COMPOSE["networks"]["node"]["internal"]


@pytest.mark.parametrize("name", ["cinquefoil", "generative"])
def test_the_deployments_of_containers_check_identities(name: str) -> None:
    """Workers listen on the agent's alias in the nodes' network."""
    deployment = load(ROOT / f"deploy/compose/{name}.yaml")
    assert deployment.principals is not None
    aliases = SERVICES["gpuagent"]["networks"]["node"]["aliases"]
    assert [node.worker_host for node in deployment.nodes.values()] == aliases
