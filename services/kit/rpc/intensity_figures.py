"""Bounds of carbon intensities, of the carbon service as of its clients."""

from typing import Final

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from services.kit.errors import InvalidArgument
from services.kit.rpc.figures import Bounds, check_figures

MOST_GCO2E_PER_KWH: Final = 1e4
"""Several times the intensity of lignite."""

_MOST_S: Final = 10 * 366 * 86_400
_FROM_S, _UNTIL_S = 0, 253_402_300_799  # 1970 .. 9999
_OF_AN_INTENSITY: Final[Bounds] = {
    "intensity_gco2e_per_kwh": (0, MOST_GCO2E_PER_KWH),
    "average_gco2e_per_kwh": (0, MOST_GCO2E_PER_KWH),
    "ratio": (0, 1e4),
    "percentile": (0, 100),
}
_OF_A_PERIOD: Final[Bounds] = {
    "intensity_gco2e_per_kwh": (0, MOST_GCO2E_PER_KWH),
    "low_gco2e_per_kwh": (0, MOST_GCO2E_PER_KWH),
    "high_gco2e_per_kwh": (0, MOST_GCO2E_PER_KWH),
}
_OF_AN_AGE: Final[Bounds] = {"seconds": (0, _MOST_S), "nanos": (0, 1e9)}
_OF_A_TIME: Final[Bounds] = {"seconds": (_FROM_S, _UNTIL_S), "nanos": (0, 1e9)}


def implausible(entry: pb.Intensity) -> str:
    """Return why an intensity, its age or its forecast cannot be; "": they can."""
    try:
        check_figures("intensity", entry, _OF_AN_INTENSITY)
        check_figures("since", entry.since, _OF_A_TIME)
        check_figures("staleness", entry.staleness, _OF_AN_AGE)
        for period in entry.forecast.periods:
            check_figures("forecast", period, _OF_A_PERIOD)
            check_figures("forecast.since", period.since, _OF_A_TIME)
            check_figures("forecast.length", period.length, _OF_AN_AGE)
    except InvalidArgument as error:
        return error.message
    return ""
