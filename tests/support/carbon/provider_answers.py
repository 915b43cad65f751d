"""Answers of each provider, in the shapes that its documentation and its clients' tests show.

All of them answer requests at NOW, about a grid whose present hour or half hour began at 19:00.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from services.carbon.core.model import Provenance
from tests.support.fake_provider import Answer, HttpRequest

NOW = datetime(2024, 3, 6, 19, 10, tzinfo=UTC)
KEY = "s3cr3t-key-0815"


@dataclass(frozen=True)
class Case:
    """A provider as it is configured and as it answers.

    Attributes:
        settings: Without "url".
        bodies: Answers by path, or by the path's last part.
        newest: Start, value and provenance of its newest sample.
        count: Samples.
        ahead: Values of its forecast; empty: it has none.
        token: The part of the key that the provider gets.
        times: Pattern of the times in its answers.
        impossible: A time of that format that has no instant in UTC.
    """

    settings: Mapping[str, Any]
    bodies: Mapping[str, str]
    newest: tuple[datetime, float, Provenance]
    count: int
    ahead: tuple[float, ...] = ()
    token: str = KEY
    times: str = r"2024-03-06T[0-9:.]*(Z|\+00:00)"
    impossible: str = "0001-01-01T00:00+14:00"  # east of Greenwich

    def answer(self, request: HttpRequest) -> Answer:
        """Answer as the provider does."""
        for path, body in self.bodies.items():
            if request.path.startswith(path) or request.path.endswith(path):
                return Answer(body)
        return Answer('{"error": "no such path"}', status=404)


def _neso(hour: str, until: str, **intensity: Any) -> dict[str, Any]:
    return {"from": f"2024-03-06T{hour}Z", "to": f"2024-03-06T{until}Z", "intensity": intensity}


NESO = Case(
    settings={"kind": "neso"},
    bodies={
        "/intensity/": json.dumps(
            {
                "data": [
                    _neso("18:30", "19:00", forecast=266, actual=263, index="moderate"),
                    _neso("19:00", "19:30", forecast=270, actual=None, index="moderate"),
                    _neso("19:30", "20:00", forecast=280, actual=None, index="high"),
                ]
            }
        )
    },
    newest=(datetime(2024, 3, 6, 19, tzinfo=UTC), 270.0, "forecast"),
    count=2,
    ahead=(270.0, 280.0),
    token="",
)

NESO_REGION = Case(
    settings={"kind": "neso", "region": 3},
    bodies={
        "/regional/intensity/": json.dumps(
            {
                "data": {
                    "regionid": 3,
                    "dnoregion": "Electricity North West",
                    "shortname": "North West England",
                    "data": [
                        _neso("18:30", "19:00", forecast=60, index="low")
                        | {"generationmix": [{"fuel": "gas", "perc": 43.6}]},
                        _neso("19:00", "19:30", forecast=61, index="low"),
                    ],
                }
            }
        )
    },
    newest=(datetime(2024, 3, 6, 19, tzinfo=UTC), 61.0, "forecast"),
    count=2,
    ahead=(61.0,),
    token="",
)


def _electricity_maps(hour: int, value: int | None, *, estimated: bool) -> dict[str, Any]:
    return {
        "zone": "DE",
        "carbonIntensity": value,
        "datetime": f"2024-03-06T{hour}:00:00.000Z",
        "updatedAt": "2024-03-06T18:46:37.420Z",
        "createdAt": "2024-03-03T18:46:34.012Z",
        "emissionFactorType": "lifecycle",
        "isEstimated": estimated,
        "estimationMethod": "TIME_SLICER_AVERAGE" if estimated else None,
    }


ELECTRICITY_MAPS = Case(
    settings={"kind": "electricity-maps", "zone": "DE"},
    bodies={
        "/carbon-intensity/latest": json.dumps(_electricity_maps(19, 216, estimated=True)),
        "/carbon-intensity/history": json.dumps(
            {
                "zone": "DE",
                "history": [
                    _electricity_maps(16, 200, estimated=False),
                    _electricity_maps(17, None, estimated=False),
                    _electricity_maps(18, 210, estimated=False),
                ],
            }
        ),
        "/carbon-intensity/forecast": json.dumps(
            {
                "zone": "DE",
                "updatedAt": "2024-03-06T18:50:00.000Z",
                "forecast": [
                    {"carbonIntensity": 220, "datetime": "2024-03-06T20:00:00.000Z"},
                    {"carbonIntensity": 230, "datetime": "2024-03-06T21:00:00.000Z"},
                ],
            }
        ),
    },
    newest=(datetime(2024, 3, 6, 19, tzinfo=UTC), 216.0, "estimated"),
    count=3,
    ahead=(220.0, 230.0),
)


def _watttime(units: str, *points: tuple[str, float], **more: Any) -> str:
    data = [
        {"point_time": f"2024-03-06T{time}:00+00:00", "value": value, **more}
        for time, value in points
    ]
    meta = {
        "data_point_period_seconds": 300,
        "region": "CAISO_NORTH",
        "signal_type": "co2_moer",
        "units": units,
        "warnings": [],
        "model": {"date": "2022-10-01"},
    }
    return json.dumps({"data": data, "meta": meta})


WATTTIME = Case(
    settings={"kind": "watttime", "username": "ada", "region": "CAISO_NORTH"},
    bodies={
        "/login": '{"token": "jwt-' + KEY + '"}',
        "/v3/historical": _watttime(
            "lbs_co2_per_mwh",
            ("19:00", 860.0),
            ("19:05", 870.0),
            last_updated="2024-03-06T19:07:00+00:00",
            imputed_data_used=True,
        ),
        "/v3/forecast": _watttime("lbs_co2_per_mwh", ("19:10", 880.0), ("19:15", 1000.0)),
    },
    newest=(NOW, 880.0 * 0.45359237, "forecast"),
    count=3,
    ahead=(880.0 * 0.45359237, 1000.0 * 0.45359237),
    token="Bearer jwt-" + KEY,
)

WATTTIME_INDEX = Case(
    settings={**WATTTIME.settings, "signal_type": "signal_index"},
    bodies={
        "/login": WATTTIME.bodies["/login"],
        "/v3/signal-index": _watttime("percentile", ("19:10", 96.0)),
    },
    newest=(NOW, 96.0, "forecast"),
    count=1,
    token=WATTTIME.token,
)


def _series(kind: str, *powers_mw: float, domain: str = "inBiddingZone_Domain") -> str:
    points = "".join(
        f"<Point><position>{position}</position><quantity>{power}</quantity></Point>"
        for position, power in enumerate(powers_mw, 1)
        if power >= 0
    )
    return f"""<TimeSeries><mRID>1</mRID>
      <{domain}.mRID codingScheme="A01">10Y1001A1001A82H</{domain}.mRID>
      <MktPSRType><psrType>{kind}</psrType></MktPSRType><curveType>A03</curveType>
      <Period><timeInterval><start>2024-03-06T16:00Z</start><end>2024-03-06T19:00Z</end>
        </timeInterval><resolution>PT60M</resolution>{points}</Period></TimeSeries>"""


ENTSOE = Case(
    settings={"kind": "entsoe", "area": "10Y1001A1001A82H"},
    bodies={
        "/api": '<?xml version="1.0" encoding="UTF-8"?>'
        '<GL_MarketDocument xmlns="urn:iec62325.351:tc57wg16:451-6:generationloaddocument:3:0">'
        "<mRID>x</mRID><type>A75</type>"
        # Left out positions repeat the one before; storage and consumption do not count.
        + _series("B05", 1000, -1, 3000)
        + _series("B19", 3000, 1000, 1000)
        + _series("B10", 900, 900, 900)
        + _series("B10", 5, 5, 5, domain="outBiddingZone_Domain")
        + "</GL_MarketDocument>"
    },
    newest=(datetime(2024, 3, 6, 18, tzinfo=UTC), (3 * 820 + 11) / 4, "measured"),
    count=3,
)

CARBON_AWARE_SDK = Case(
    settings={"kind": "carbon-aware-sdk", "location": "eastus"},
    bodies={
        "/emissions/bylocation": json.dumps(
            [
                {
                    "location": "PJM_ROANOKE",
                    "time": f"2024-03-06T{time}:00+00:00",
                    "rating": rating,
                    "duration": "00:05:00",
                }
                for time, rating in (("19:00", 410.5), ("19:05", 411.5))
            ]
        ),
        "/emissions/forecasts/current": json.dumps(
            [
                {
                    "generatedAt": "2024-03-06T19:05:00+00:00",
                    "optimalDataPoints": [],
                    "forecastData": [
                        {
                            "location": "PJM_ROANOKE",
                            "timestamp": "2024-03-06T19:15:00+00:00",
                            "duration": 5,
                            "value": 420.25,
                        }
                    ],
                }
            ]
        ),
    },
    newest=(NOW - timedelta(minutes=5), 411.5, "measured"),
    count=2,
    ahead=(420.25,),
)

OPENADR = Case(
    settings={"kind": "openadr", "program_id": "ghg"},
    bodies={
        "/events": json.dumps(
            [
                {
                    "id": "e1",
                    "programID": "ghg",
                    "payloadDescriptors": [{"payloadType": "GHG", "units": "GHG"}],
                    "intervalPeriod": {"start": "2024-03-06T18:00:00Z", "duration": "PT1H"},
                    "intervals": [
                        {"id": n, "payloads": [{"type": "GHG", "values": [value]}]}
                        for n, value in enumerate((310.0, 320.5, 330.0))
                    ],
                }
            ]
        )
    },
    newest=(datetime(2024, 3, 6, 19, tzinfo=UTC), 320.5, "forecast"),
    count=2,
    ahead=(320.5, 330.0),
    token="",
    impossible="9999-12-31T23:59-14:00",  # year 1 stands for "now"
)

CASES: Mapping[str, Case] = {
    "neso": NESO,
    "neso-region": NESO_REGION,
    "electricity-maps": ELECTRICITY_MAPS,
    "watttime": WATTTIME,
    "watttime-index": WATTTIME_INDEX,
    "entsoe": ENTSOE,
    "carbon-aware-sdk": CARBON_AWARE_SDK,
    "openadr": OPENADR,
}
