"""Prometheus's own look at the alerts, and Grafana's needs of the dashboard."""

import json
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from services.kit.config.loader import load
from tests.support.paths import ROOT

PROMTOOL = shutil.which("promtool")
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on the path: apt-get install prometheus")
@pytest.mark.parametrize("tests", ["alerts_test.yml", "aliases_test.yml"])
def test_rules_do_what_their_tests_say(tests: str) -> None:
    """Alerts fire when they should; figures under other exporters' names have their units."""
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "test", "rules", tests],
        cwd=ROOT / "deploy/prometheus",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_section_with_what_to_do_and_is_shown_firing() -> None:
    """A fault for each alert, and none for an alert that there is not."""
    folder = ROOT / "deploy/prometheus"
    (group,) = yaml.safe_load((folder / "alerts.yml").read_text())["groups"]
    alerts = {each["alert"]: each["annotations"]["runbook_url"] for each in group["rules"]}
    page = (ROOT / "docs/alerts.md").read_text()
    sections = {
        f"docs/alerts.md#{name.lower()}" for name in re.findall(r"^## (\w+)", page, re.MULTILINE)
    }
    firing = {
        check["alertname"]
        for test in yaml.safe_load((folder / "alerts_test.yml").read_text())["tests"]
        for check in test["alert_rule_test"]
        if check["exp_alerts"]
    }

    assert {*alerts.values()} == sections
    assert all(url.endswith(f"#{name.lower()}") for name, url in alerts.items())
    assert firing == alerts.keys()


def test_dashboards_are_as_their_source_has_them() -> None:
    """`make dashboards` writes them, none is left of before, and each has a place of its own."""
    source = runpy.run_path(str(ROOT / ".ci/dashboards.py"))
    written = {path.stem: path.read_text() for path in (ROOT / "deploy/grafana").glob("*.json")}

    assert dict(source["texts"]()) == written
    assert {json.loads(text)["uid"] for text in written.values()} == written.keys()


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on the path: apt-get install prometheus")
def test_every_expression_of_a_dashboard_is_promql(tmp_path: Path) -> None:
    assert PROMTOOL is not None
    expressions = [expr for path in DASHBOARDS for expr in expressions_of(path)]
    rules = [
        {
            "record": f"panel:{number}",
            "expr": expr.replace("$__rate_interval", "1m").replace("$model", ".*"),
        }
        for number, expr in enumerate(expressions)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run(
        [PROMTOOL, "check", "rules", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def expressions_of(path: Path) -> list[str]:
    panels = json.loads(path.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_of_a_dashboard_do_not_overlap_and_use_the_chosen_data_source(path: Path) -> None:
    panels = json.loads(path.read_text())["panels"]
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


def test_services_export_to_the_collector_of_compose_only_on_request() -> None:
    """The collector's pipelines name only what its file defines, and each part is in one."""
    overlay = yaml.safe_load((ROOT / "deploy/compose/observability.yaml").read_text())["services"]
    collector = yaml.safe_load((ROOT / "deploy/compose/collector.yaml").read_text())

    assert overlay["collector"]["profiles"] == ["collector"]
    assert {
        overlay[name]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"]
        for name in ("carbon", "planner", "gpuagent", "router")
    } == {"${OTEL_EXPORTER_OTLP_ENDPOINT:-}"}
    for kind in ("receivers", "processors", "exporters"):
        used = {each for one in collector["service"]["pipelines"].values() for each in one[kind]}
        assert used == collector[kind].keys()
    assert collector["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"].endswith(":4317")
