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
        "batch": {"pki-batch"},
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


FRONT = yaml.safe_load((ROOT / "deploy/compose/front.yaml").read_text())


def test_the_front_is_limited_and_between_its_clients_and_the_router_alone() -> None:
    """No key but its own; what it publishes is this machine's until somebody says otherwise."""
    front, issuer, router = (FRONT["services"][each] for each in ("front", "pki-front", "router"))
    for settings in (front, issuer):
        assert {"mem_limit", "pids_limit"} <= settings.keys()
        assert settings["cap_drop"] == ["ALL"]
        assert settings["read_only"]
    assert front["ports"] == ["${FRONT:-127.0.0.1:8443}:8443"]
    assert front["networks"] == ["open", "front"]
    assert router["networks"] == ["front"]
    assert FRONT["networks"]["front"]["internal"]
    mounted = {each.rpartition(":")[0] for each in front["volumes"]}
    assert mounted == {
        "./deploy/helm/cinquefoil/files/front:/etc/front/config",
        "pki-front:/etc/front/tls",
        "pki-front:/etc/front/router",
    }
    chart = yaml.safe_load((ROOT / "deploy/helm/cinquefoil/values.yaml").read_text())
    assert front["image"] == f"${{ENVOY:-{chart['front']['image']}}}"


def test_the_router_behind_the_front_takes_tokens_where_the_front_sends_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The environment completes the same deployment file, at the ports that Envoy's file has."""
    for name, value in FRONT["services"]["router"]["environment"].items():
        monkeypatch.setenv(name, value)
    envoy = yaml.safe_load((ROOT / "deploy/helm/cinquefoil/files/front/envoy.yaml").read_text())
    router = load(ROOT / "deploy/compose/cinquefoil.yaml").router
    places = [
        each["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
        for each in envoy["static_resources"]["clusters"]
    ]
    assert [each["socket_address"]["address"] for each in places] == ["router", "router"]
    assert [f"0.0.0.0:{each['socket_address']['port_value']}" for each in places] == [
        router.token_listen,
        router.http_listen,
    ]
