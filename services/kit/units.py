"""Conversions between the units in our names, in one place."""

from typing import Final

J_PER_KWH: Final = 3.6e6
BYTES_PER_KIB: Final = 2**10
BYTES_PER_MIB: Final = 2**20
BYTES_PER_GIB: Final = 2**30
S_PER_H: Final = 3600.0


def carbon_gco2e(energy_j: float, intensity_gco2e_per_kwh: float) -> float:
    """Return the operational carbon of an energy.

    Args:
        energy_j: Energy, J.
        intensity_gco2e_per_kwh: Carbon intensity of the electricity, gCO2e/kWh.

    Source: GSF Software Carbon Intensity specification (ISO/IEC 21031), O = E * I.
    """
    return energy_j / J_PER_KWH * intensity_gco2e_per_kwh
