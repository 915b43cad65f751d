"""Prometheus's own look at the alerts, and Grafana's needs of the dashboard."""

import json
import shutil
import subprocess

import pytest
import yaml

from services.kit.config.loader import load
from tests.support.paths import ROOT

PROMTOOL = shutil.which("promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on the path: apt-get install prometheus")
def test_alerts_fire_when_they_should() -> None:
    """Those of alerts_test.yml: among others, fast burning of objectives of any percentile."""
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "test", "rules", "alerts_test.yml"],
        cwd=ROOT / "deploy/prometheus",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_of_the_dashboard_do_not_overlap_and_use_the_chosen_data_source() -> None:
    panels = json.loads((ROOT / "deploy/grafana/cinquefoil.json").read_text())["panels"]
    cells = [
        (x, each["gridPos"]["y"])
        for each in panels
        for x in range(each["gridPos"]["x"], each["gridPos"]["x"] + each["gridPos"]["w"])
    ]

    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert {each["datasource"]["uid"] for each in panels} == {"${datasource}"}


def test_compose_turns_on_the_metrics_that_prometheus_scrapes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The overrides of observability.yaml are settings, at the ports of prometheus.yml."""
    overlay = yaml.safe_load((ROOT / "deploy/compose/observability.yaml").read_text())["services"]
    scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    for service in overlay.values():
        for name, value in service.get("environment", {}).items():
            if name.startswith("CINQUEFOIL_"):
                monkeypatch.setenv(name, value)
    deployment = load(ROOT / "deploy/compose/cinquefoil.yaml")

    exposed = {
        "carbon": deployment.carbon,
        "planner": deployment.planner,
        "gpuagent": deployment.nodes["node-0"],
        "router": deployment.router,
    }
    ports = {f"{name}:{each.metrics.rpartition(':')[2]}" for name, each in exposed.items()}
    assert ports == set(scraped["scrape_configs"][0]["static_configs"][0]["targets"])
