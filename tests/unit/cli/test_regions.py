"""Regions in rows: what came home if one were lost."""

import json
from typing import Any

import pytest

from cinquefoil.regions.v1.regions_pb2 import Flow, ListRegionsResponse, Region
from services.cli.console.output import as_line
from services.cli.regions.rows import region_line, region_rows


def regions(**peer: Any) -> ListRegionsResponse:
    """One region with two peers: 20 req/s of its 30 leave, 5 come."""
    own = Flow(model="m", carbon_gco2e=0.6, granted_rps=50, sent_rps=30, received_rps=5)
    north = Flow(model="m", carbon_gco2e=0.1, granted_rps=25, sent_rps=20)
    south = Flow(model="m", carbon_gco2e=0.8, received_rps=5)
    return ListRegionsResponse(
        regions=[
            Region(name="home", reachable=True, flows=[own]),
            Region(name="north", **{"reachable": True, "flows": [north], **peer}),
            Region(name="south", reachable=True, flows=[south]),
        ]
    )


def test_a_lost_region_brings_home_what_went_there_and_takes_along_what_came() -> None:
    """Now 15 req/s are served here: 35 without the north, 10 without the south, of 50."""
    home, north, south = region_rows(regions())
    assert home.load_if_lost is None
    assert north.load_if_lost == pytest.approx(0.7)
    assert south.load_if_lost == pytest.approx(0.2)
    assert north.carbon_if_lost_gco2e_per_h == pytest.approx(20 * 0.5 * 3600)
    assert south.carbon_if_lost_gco2e_per_h == 0


def test_a_line_says_what_goes_or_why_nothing_does() -> None:
    """Within 80 columns; of a region that is away, or drains, its state."""
    _, north, _ = region_rows(regions())
    assert region_line(north) == (
        "region north: 20.0 req/s of m go there, 0.0 come; if lost, home is at 70.0 %"
    )
    _, away, _ = region_rows(regions(reachable=False, reason="no answer", flows=[]))
    assert region_line(away) == "region north: no answer"
    assert region_rows(None) == []


def test_rows_are_json() -> None:
    """A row for each region and model, with null where nothing is known."""
    home, north, _ = json.loads(as_line(region_rows(regions())))
    assert home["load_if_lost"] is None
    assert north["sent_rps"] == 20
