"""Round trips between regions of a public cloud, and the time of day there.

Google Cloud, measured: gcp_latency_matrix.csv of umassos/decarbonization-potential (Sukprasert et
al., "On the Limitations of Carbon-Aware Temporal and Spatial Workload Shifting in the Cloud",
EuroSys 2024). Stand-ins: us-east4 for New York (8 ms to it assumed), Finland for Sweden, Mumbai
for western India.
"""

from typing import Final

UTC_OFFSET_H: Final = {
    "US-CAL-CISO": -8,
    "US-TEX-ERCO": -6,
    "US-MIDA-PJM": -5,
    "US-NY-NYIS": -5,
    "CA-ON": -5,
    "GB": 0,
    "DE-LU": 1,
    "PL": 1,
    "SE-SE4": 1,
    "FR": 1,
    "ES": 1,
    "AU-NSW": 10,
    "JP-TK": 9,
    "IN-WE": 5,
    "SG": 8,
}

_MS: Final = (
    (),
    (34,),
    (65, 32),
    (65, 32, 8),
    (67, 33, 21, 21),
    (139, 105, 76, 76, 84),
    (151, 118, 87, 87, 95, 13),
    (166, 132, 101, 101, 109, 27, 15),
    (167, 133, 103, 103, 122, 39, 33, 19),
    (143, 109, 78, 78, 90, 7, 10, 24, 42),
    (160, 126, 95, 95, 108, 26, 27, 41, 53, 19),
    (137, 171, 192, 192, 190, 262, 278, 293, 293, 270, 287),
    (100, 133, 146, 146, 144, 216, 230, 246, 247, 223, 241, 121),
    (224, 256, 209, 209, 223, 140, 133, 149, 165, 134, 136, 152, 132),
    (163, 201, 211, 211, 210, 200, 193, 210, 224, 193, 197, 93, 69, 60),
)
"""The lower triangle, in the order of `UTC_OFFSET_H`."""


def round_trip_s(here: str, there: str) -> float:
    """Return the round trip between two regions, s."""
    order = list(UTC_OFFSET_H)
    low, high = sorted((order.index(here), order.index(there)))
    return 0.0 if low == high else _MS[high][low] / 1e3
