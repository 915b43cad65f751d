"""A made-up day, for report and chart."""

import math
from datetime import UTC, datetime, timedelta

from services.cli.console.slice_bars import SliceCells
from services.cli.demo.sample import GpuSample, Sample

MIDNIGHT = datetime(2026, 3, 20, tzinfo=UTC)


def intensity_at(hour: float) -> float:
    """A solar valley at noon."""
    return 210 - 90 * math.exp(-(((hour - 13) / 4) ** 2)) + 60 * math.exp(-(((hour - 20) / 3) ** 2))


def changes() -> list[tuple[datetime, float]]:
    """Half-hourly intensities."""
    return [(MIDNIGHT + timedelta(hours=n / 2), intensity_at(n / 2)) for n in range(49)]


def day(*, power_w: float, follows: bool) -> list[Sample]:
    """Readings every half second of a day in a minute; `follows`: shares follow the grid."""
    samples = []
    energy_j = carbon_gco2e = 0.0
    for tick in range(121):
        hour = tick / 5
        drawn_w = power_w * (intensity_at(hour) < 190 or not follows) + 70 * follows
        dirty = follows and intensity_at(hour) > 190
        variant = "linear" if dirty else "svc"
        samples.append(
            Sample(
                at=MIDNIGHT + timedelta(hours=hour),
                seconds=tick / 2,
                plan=1 + dirty,
                gpus=(GpuSample("node-0/0", 7, (SliceCells(4, 3, f"digits/{variant}"),), 55.0),),
                power_w=drawn_w,
                energy_j=energy_j,
                carbon_gco2e=carbon_gco2e,
            )
        )
        energy_j += drawn_w / 2
        carbon_gco2e += drawn_w / 2 * intensity_at(hour) / 3.6e6
    return samples
