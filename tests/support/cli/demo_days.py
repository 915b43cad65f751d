"""A made-up day, for report and chart."""

import math
from datetime import UTC, datetime, timedelta

from services.cli.demo.sample import Sample

MIDNIGHT = datetime(2026, 3, 20, tzinfo=UTC)
VARIANTS = ("tree", "linear", "mlp-64", "mlp-512", "svc")


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
        shares = {"linear": 0.6, "svc": 0.4} if dirty else {"svc": 1.0}
        samples.append(
            Sample(
                at=MIDNIGHT + timedelta(hours=hour),
                seconds=tick / 2,
                plan=1 + dirty,
                shares=shares,
                slices={("svc", "3g.20gb"): 2},
                power_w=drawn_w,
                energy_j=energy_j,
                carbon_gco2e=carbon_gco2e,
                gpu_energy_j={"GPU-1": energy_j * 0.6, "GPU-2": energy_j * 0.4},
            )
        )
        energy_j += drawn_w / 2
        carbon_gco2e += drawn_w / 2 * intensity_at(hour) / 3.6e6
    return samples
