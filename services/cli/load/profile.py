"""Arrivals of a load by its profile: constant, a day, bursts, or a file."""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.kit.errors import InvalidArgument
from services.simulator.load import Rate, arrivals
from services.simulator.load import rate as rate_of
from services.simulator.loader import read_column
from services.simulator.scenario import Arrivals, DailyLoad

NAMED: Final = ("constant", "day", "bursts")
"""Profiles by name; another word is a CSV file."""

_DAY_S: Final = 86_400.0
_SWING: Final = 0.6
_BURST_CV: Final = 4.0


def due_times_s(profile: str, rate_rps: float, duration_s: float, seed: int) -> NDArray[np.float64]:
    """Return the times at which to send, s from the start, rising, within the duration.

    Args:
        profile: `constant`: a Poisson process. `day`: one whose rate passes a day, from midnight to
            midnight, in the duration. `bursts`: gaps of a gamma distribution with a coefficient of
            variation of 4. Else a CSV file: `rps` (rates of equal steps, stretched over the
            duration and scaled to the mean rate) or `arrival_s` (the times themselves).
        rate_rps: Mean rate, req/s, > 0.
        duration_s: Length, s, > 0.
        seed: Of the random numbers: equal seeds give equal times.

    Raises:
        InvalidArgument: The profile is no known word, and no file with such a column.
    """
    rng = np.random.default_rng(seed)
    flat = Rate(np.array([0.0, duration_s]), np.array([rate_rps]))
    match profile:
        case "constant":
            return arrivals(flat, Arrivals(), rng)
        case "bursts":
            return arrivals(flat, Arrivals(kind="gamma", cv=_BURST_CV), rng)
        case "day":
            daily = DailyLoad(kind="daily", mean_rps=rate_rps, swing=_SWING)
            day = rate_of(daily, None, _DAY_S, hour=0.0)
            return arrivals(_stretched(day, duration_s), Arrivals(), rng)
    return _from_file(Path(profile), rate_rps, duration_s, rng)


def _stretched(steps: Rate, duration_s: float) -> Rate:
    return Rate(steps.edges_s * (duration_s / steps.edges_s[-1]), steps.rps)


def _from_file(
    path: Path, rate_rps: float, duration_s: float, rng: np.random.Generator
) -> NDArray[np.float64]:
    if not path.is_file():
        raise InvalidArgument(
            f"--profile: {path} is neither {', '.join(NAMED)} nor a CSV file that exists"
        )
    with path.open(encoding="utf-8", errors="replace") as file:
        columns = [name.strip() for name in file.readline(65_536).split(",")]
    if "arrival_s" in columns:
        times_s = np.sort(read_column(path, "arrival_s"))
        return times_s[times_s < duration_s]
    if "rps" not in columns:
        raise InvalidArgument(f"--profile: {path} has no column rps, and none arrival_s")
    rates = read_column(path, "rps")
    if not len(rates) or not rates.mean() > 0:
        raise InvalidArgument(f"--profile: {path}: its rates have a mean of 0")
    edges_s = np.linspace(0.0, duration_s, len(rates) + 1)
    return arrivals(Rate(edges_s, rates * (rate_rps / rates.mean())), Arrivals(), rng)
