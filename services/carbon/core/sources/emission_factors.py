"""Life-cycle emissions of a kWh by production type, gCO2e.

Medians of IPCC AR5, Working Group III (2014), Annex III, table A.III.2, for the technologies that
it has: coal (pulverised), gas (combined cycle), biomass (dedicated), geothermal, hydropower,
nuclear, ocean, solar (photovoltaic, utility), wind (on and off shore). It does not distinguish
kinds of coal; peat and oil shale count as coal. Oil: 650 (UK Parliamentary Office of Science and
Technology, "Carbon footprint of electricity generation", 2006). "Other" and waste: 700, taken as a
mix of unknown fossil fuels, on the high side on purpose.

Storage gives back what was generated before: it is left out of generation and of emissions.
"""

from collections.abc import Mapping
from typing import Final

LIFECYCLE_GCO2E_PER_KWH: Final[Mapping[str, float]] = {
    "B01": 230.0,  # biomass
    "B02": 820.0,  # lignite
    "B03": 490.0,  # gas from coal
    "B04": 490.0,  # gas
    "B05": 820.0,  # hard coal
    "B06": 650.0,  # oil
    "B07": 820.0,  # oil shale
    "B08": 820.0,  # peat
    "B09": 38.0,  # geothermal
    "B11": 24.0,  # run of river
    "B12": 24.0,  # water reservoir
    "B13": 17.0,  # marine
    "B14": 12.0,  # nuclear
    "B15": 38.0,  # other renewable: as geothermal, the highest that needs no fuel
    "B16": 48.0,  # solar
    "B17": 700.0,  # waste
    "B18": 12.0,  # wind off shore
    "B19": 11.0,  # wind on shore
    "B20": 700.0,  # other
}
"""By ENTSO-E's code of the production type (psrType)."""

STORAGE: Final = frozenset({"B10", "B25"})
"""Pumped and other storage."""
