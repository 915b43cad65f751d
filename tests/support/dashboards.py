"""Metrics that dashboards and alerts use."""

import json
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.support.paths import ROOT

_METRIC = re.compile(r"\b(?:cinquefoil|gen_ai_server)_[a-z0-9_]+")


def used() -> dict[str, set[str]]:
    """Return the metrics of every expression of ours, by panel or alert."""
    return {name: set(_METRIC.findall(text)) for name, text in _expressions()}


def _expressions() -> Iterator[tuple[str, str]]:
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for path in (ROOT / "deploy/grafana").glob("*.json"):
        dashboard: dict[str, Any] = json.loads(path.read_text())
        for panel in dashboard["panels"]:
            yield panel["title"], " ".join(target["expr"] for target in panel["targets"])
        for each in dashboard["annotations"]["list"]:
            yield each["name"], each["expr"]
        for variable in dashboard["templating"]["list"]:
            yield variable["name"], str(variable["query"])


def names(scrape: str) -> set[str]:
    """Return the metrics of a scrape, those of histograms as their series."""
    kinds = re.findall(r"^# TYPE (\S+) (\S+)$", scrape, re.MULTILINE)
    return {
        name + suffix
        for name, kind in kinds
        for suffix in (("_bucket", "_count", "_sum") if kind == "histogram" else ("",))
    }
