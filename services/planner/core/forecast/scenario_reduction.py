"""Reduction of many periods to few scenarios: periods of nearly equal intensities share one."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.planner.core.model import Period

FINEST = 0.01
"""Smallest relative tolerance of intensities when more than equal periods must share a scenario."""


@dataclass(frozen=True, slots=True)
class Scenarios:
    """A forecast in scenarios.

    Attributes:
        scenarios: Scenarios with their total time, the current one first. Intensities are means
            over the scenario's periods; the current one's are those of the first period.
        order: Position of the scenario of each period.
    """

    scenarios: tuple[Period, ...]
    order: tuple[int, ...]


def reduced(forecast: Sequence[Period], most: int) -> Scenarios:
    """Return the scenarios of a forecast.

    Periods with equal intensities share a scenario. If that leaves more than `most`, those within 1
    % share one, then within 2 %, 4 % and so on: each period joins the first scenario whose first
    period is close enough in every zone, and has the same power budgets.

    Args:
        forecast: At least one period, the current one first; all with the same zones and prices of
            the same zones.
        most: Largest number of scenarios, >= 1.
    """
    tolerance = 0.0
    while len(leaders := _leaders(forecast, tolerance)) > most:
        tolerance = 2 * tolerance or FINEST
    order = tuple(_scenario(leaders, period, tolerance) for period in forecast)
    members = [
        [period for period, number in zip(forecast, order, strict=True) if number == scenario]
        for scenario in range(len(leaders))
    ]
    present = Period(
        sum(period.length_s for period in members[0]),
        forecast[0].intensity_gco2e_per_kwh,
        forecast[0].sites,
        forecast[0].eur_per_kwh,
    )
    return Scenarios((present, *map(_together, members[1:])), order)


def _leaders(forecast: Sequence[Period], tolerance: float) -> list[Period]:
    leaders: list[Period] = []
    for period in forecast:
        if not any(_near(leader, period, tolerance) for leader in leaders):
            leaders.append(period)
    return leaders


def _scenario(leaders: Sequence[Period], period: Period, tolerance: float) -> int:
    return next(number for number, leader in enumerate(leaders) if _near(leader, period, tolerance))


def _near(one: Period, other: Period, tolerance: float) -> bool:
    figures = [
        (one.intensity_gco2e_per_kwh, other.intensity_gco2e_per_kwh),
        (one.eur_per_kwh, other.eur_per_kwh),
    ]
    same_budgets = one.sites == other.sites or tolerance > 1  # there may be too many of them
    return same_budgets and all(
        abs(ours[zone] - theirs[zone]) <= tolerance * max(abs(ours[zone]), abs(theirs[zone]))
        for ours, theirs in figures
        for zone in ours
    )


def _together(periods: Sequence[Period]) -> Period:
    length_s = sum(period.length_s for period in periods)
    return Period(
        length_s,
        {
            zone: _mean([(p.length_s, p.intensity_gco2e_per_kwh[zone]) for p in periods])
            for zone in periods[0].intensity_gco2e_per_kwh
        },
        periods[0].sites,
        {
            zone: _mean([(p.length_s, p.eur_per_kwh[zone]) for p in periods])
            for zone in periods[0].eur_per_kwh
        },
    )


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    first = weighted[0][1]
    if all(value == first for _, value in weighted):
        return first
    return sum(w * value for w, value in weighted) / sum(w for w, _ in weighted)
