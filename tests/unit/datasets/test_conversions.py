"""Published files in the form that is read here."""

import pytest

from services.datasets.conversions import Conversion, converted

MAPS = (
    "Datetime (UTC),Carbon Intensity gCO₂eq/kWh (direct),Carbon Intensity gCO₂eq/kWh (LCA)\n"
    "{year}-01-01 00:00:00,156.03,194.7\n"
)
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:16:50.99,396,109\n"
)
GRID = "datetime,carbon_intensity_production_avg,Forecast Carbon Intensity (gCO2/kWh)\n"
TRACE = "timestamp,carbon_intensity_gco2_per_kwh\n"


@pytest.mark.parametrize(
    ("how", "originals", "expected"),
    [
        (
            "azure_arrivals",
            [AZURE],
            "arrival_s,input_tokens,output_tokens\n0.000000,374,44\n64.309410,396,109\n",
        ),
        ("compact_json_lines", ['{"a": [1, 2]}\n{"a": []}\n'], '{"a":[1,2]}\n{"a":[]}\n'),
        (
            "electricity_maps_lca",
            ["\ufeff" + MAPS.format(year=2021), MAPS.format(year=2022)],
            f"{TRACE}2021-01-01T00:00:00Z,194.70\n2022-01-01T00:00:00Z,194.70\n",
        ),
        (
            "electricity_maps_direct",
            [MAPS.format(year=2021)],
            f"{TRACE}2021-01-01T00:00:00Z,156.03\n",
        ),
        (
            "national_grid_forecast",
            [f"{GRID}2021-01-01T00:00Z,184.0,190\n2021-01-01T01:00Z,182.0,\n"],
            f"{TRACE}2021-01-01T00:00:00Z,190.00\n",
        ),
    ],
)
def test_a_published_file_becomes_the_form_that_is_read(
    how: Conversion, originals: list[str], expected: str
) -> None:
    """Byte for byte; files of several years follow one another, and what is missing is left out."""
    assert converted(how, [each.encode() for each in originals]).decode() == expected
