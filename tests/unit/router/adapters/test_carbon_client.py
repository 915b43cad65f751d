"""Intensities that a router takes from the carbon service."""

import pytest

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from services.router.adapters.carbon_client import plausible


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e300])
@pytest.mark.parametrize("field", ["intensity_gco2e_per_kwh", "ratio"])
def test_no_counter_of_carbon_takes_an_impossible_intensity(field: str, value: float) -> None:
    """One NaN would make the grams of every later request NaN."""
    assert plausible(pb.Intensity(zone="Z", intensity_gco2e_per_kwh=820.0, ratio=1.1))
    assert not plausible(pb.Intensity(**{field: value}))  # type: ignore[arg-type]
