"""Zones whose mistakes show only when the deployment file and its traces are read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import TypeAdapter

from services.carbon.sources.factory import build
from services.kit.config import Carbon
from services.kit.config.loader import ConfigError

if TYPE_CHECKING:
    from tests.conftest import Deploy

NOW = datetime(2026, 11, 21, tzinfo=UTC)
NESO = {"kind": "neso"}
MOER = {"kind": "watttime", "username": "ada", "region": "PJM", "key_file": "watttime.key"}
INDEX = {**MOER, "signal_type": "signal_index"}
STATIC = {"kind": "static", "intensity_gco2e_per_kwh": 250.0}


def carbon(zone: dict[str, Any], **more: Any) -> Carbon:
    return TypeAdapter(Carbon).validate_python({"zones": {"Z": zone}, **more})


def test_nodes_whose_zones_mix_signals_are_refused(deployment: Deploy) -> None:
    """Their carbon would be added, and means two things."""
    marginal = {"source": STATIC, "signal": "marginal"}
    node = {"listen": "127.0.0.1:1", "zone": "M", "simulated": ["a100-40gb"]}
    with pytest.raises(ConfigError, match="average and node-1 marginal are never added"):
        deployment({"carbon": {"zones": {"M": marginal}}, "nodes": {"node-1": node}})


def test_a_node_in_a_zone_of_percentiles_is_refused(deployment: Deploy) -> None:
    zones = {"US-CAL": {"source": [INDEX], "signal": "percentile"}}
    with pytest.raises(ConfigError, match="no carbon can be computed from them"):
        deployment({"carbon": {"zones": zones}})


def trace(folder: Path, year: int, **more: Any) -> dict[str, Any]:
    path = folder / "t.csv"
    path.write_text(
        "timestamp,carbon_intensity_gco2e_per_kwh\n"
        f"{year}-03-01T00:00:00Z,1\n{year}-03-01T01:00:00Z,2\n"
    )
    return {"kind": "trace", "path": str(path), **more}


def test_a_trace_of_ten_years_ago_is_replayed_from_its_beginning(tmp_path: Path) -> None:
    start, _ = build(carbon({"source": trace(tmp_path, 2016, loop=False)}), NOW)

    assert start == datetime(2016, 3, 1, tzinfo=UTC)


def test_a_trace_of_ten_years_ago_is_not_the_present(tmp_path: Path) -> None:
    """The trace's last value would hold for ever: beside a live zone, and as its stand-in."""
    old = trace(tmp_path, 2016, loop=False)
    with pytest.raises(ConfigError, match="zone Z: the trace ends 2016-03-01 01:00 UTC, before"):
        build(carbon({"source": [NESO, old]}), NOW)
    build(carbon({"source": [NESO, {**old, "loop": True}]}), NOW)


def test_a_trace_that_ends_before_the_replay_starts_is_refused(tmp_path: Path) -> None:
    source = trace(tmp_path, 2016, loop=False)
    with pytest.raises(ConfigError, match=r"set carbon\.replay\.start"):
        build(carbon({"source": source}, replay={"start": "2020-01-01T00:00:00Z"}), NOW)
