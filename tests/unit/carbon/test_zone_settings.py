"""Settings of zones in a deployment file: all others are refused with a reason."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from services.carbon.sources.factory import build
from services.kit.config import Carbon

NOW = datetime(2026, 11, 21, tzinfo=UTC)
NESO = {"kind": "neso"}
MAPS = {"kind": "electricity-maps", "zone": "GB", "key_env": "K"}
MOER = {"kind": "watttime", "username": "ada", "region": "PJM", "key_file": "watttime.key"}
INDEX = {**MOER, "signal_type": "signal_index"}
STATIC = {"kind": "static", "intensity_gco2e_per_kwh": 250.0}
SYNTHETIC = {"kind": "synthetic"}
SDK = {"kind": "carbon-aware-sdk", "url": "http://127.0.0.1:8080", "location": "eastus"}


def carbon(zone: dict[str, Any], **more: Any) -> Carbon:
    return TypeAdapter(Carbon).validate_python({"zones": {"Z": zone}, **more})


@pytest.mark.parametrize(
    ("zone", "why"),
    [
        ({"source": [NESO, MOER]}, "watttime gives marginal values and the zone's signal is aver"),
        ({"source": [MOER, INDEX], "signal": "marginal"}, "gives percentile values"),
        ({"source": [INDEX, STATIC], "signal": "percentile"}, "static gives average or marginal"),
        ({"source": NESO, "signal": "marginal"}, "neso gives average values"),
        ({"source": [STATIC, NESO]}, "static always has a value"),
        ({"source": [NESO, SYNTHETIC, STATIC]}, "synthetic always has a value"),
        ({"source": []}, "at least 1 item"),
        ({"source": {**STATIC, "intensity_gco2e_per_kwh": -1.0}}, "greater than or equal to 0"),
        ({"source": {**STATIC, "intensity_gco2e_per_kwh": 2e5}}, "less than or equal to 5000"),
        ({"source": {**STATIC, "intensity_gco2e_per_kwh": float("nan")}}, "finite number"),
        ({"source": {**SYNTHETIC, "mean_gco2e_per_kwh": float("inf")}}, "finite number"),
        ({"source": {"kind": "electricity-maps", "zone": "DE"}}, "key_file or key_env"),
        ({"source": {**MAPS, "key_file": "k"}}, "key_file or key_env"),
        ({"source": {**MAPS, "url": "http://maps.example"}}, "would send the key in the clear"),
        ({"source": {**SDK, "url": "http://sdk.example", "key_env": "K"}}, "key in the clear"),
        ({"source": {**MAPS, "key": "secret"}}, "Extra inputs are not permitted"),
        ({"source": {**MAPS, "zone": "DE/../x?y"}}, "should match pattern"),
        ({"source": {**NESO, "region": 18}}, "less than or equal to 17"),
        ({"source": {**NESO, "url": "https://ada:key@x.org"}}, "should match pattern"),
        ({"source": {"kind": "entsoe", "area": "DE", "key_env": "K"}}, "should match pattern"),
        ({"source": {"kind": "guesswork"}}, "guesswork"),
    ],
)
def test_what_cannot_work_is_refused_with_its_reason(zone: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        carbon(zone)


@pytest.mark.parametrize(
    "source",
    [
        {**SDK, "url": "http://sdk.example"},
        {**MAPS, "url": "http://127.0.0.1:8080"},
        {**MAPS, "url": "http://[::1]:8080"},
    ],
)
def test_plain_http_is_allowed_without_a_key_and_on_this_machine(source: dict[str, Any]) -> None:
    assert carbon({"source": source})


@pytest.mark.parametrize(
    "zone",
    [
        {"source": [NESO, MAPS, STATIC]},
        {"source": [MOER, SDK, STATIC], "signal": "marginal"},
        {"source": [NESO, SYNTHETIC]},
        {"source": INDEX, "signal": "percentile"},
        {"source": [STATIC]},
    ],
    ids=["average", "marginal", "synthetic-last", "percentile", "list-of-one"],
)
def test_chains_of_one_signal_are_built(zone: dict[str, Any]) -> None:
    _, sources = build(carbon(zone), NOW)

    assert list(sources) == ["Z"]


@pytest.mark.parametrize("replay", [{"speedup": 60}, {"start": "2022-01-01T00:00:00Z"}])
def test_live_values_are_not_replayed(replay: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="live values are of the present"):
        carbon({"source": NESO}, replay=replay)
