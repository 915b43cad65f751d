"""Generation by type: types of any resolution add up at every instant, and gaps stay gaps."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.carbon.core.model import Sample
from services.carbon.core.sources.emission_factors import LIFECYCLE_GCO2E_PER_KWH
from services.carbon.core.sources.generation import Generation, intensities
from tests.support.examples import examples

START = datetime(2026, 3, 29, tzinfo=UTC)
QUARTER, HOUR = timedelta(minutes=15), timedelta(hours=1)
HOURS = 6
KINDS = ("B05", "B16", "B19", "B14")

Steps = Sequence[Generation]


@st.composite
def series(draw: st.DrawFn, kind: str) -> Steps:
    """A type's hours, each whole or in quarters."""
    found: list[Generation] = []
    power = st.integers(0, 9000)
    for hour in range(HOURS):
        since = START + hour * HOUR
        if draw(st.booleans()):
            found.append(Generation(kind, since, HOUR, float(draw(power))))
        else:
            found += [
                Generation(kind, since + q * QUARTER, QUARTER, float(draw(power))) for q in range(4)
            ]
    return found


MIXES = st.tuples(*(series(kind) for kind in KINDS))


def in_force(steps: Steps, when: datetime) -> float:
    return next(each.power_mw for each in steps if each.since <= when < each.since + each.step)


def expected(mix: Sequence[Steps], when: datetime) -> float | None:
    power = {steps[0].kind: in_force(steps, when) for steps in mix}
    total = sum(power.values())
    if not total:
        return None
    return sum(mw * LIFECYCLE_GCO2E_PER_KWH[kind] for kind, mw in power.items()) / total


def by_time(samples: Sequence[Sample]) -> Mapping[datetime, float]:
    return {each.since: each.intensity_gco2e_per_kwh for each in samples}


@examples(0.4)
@given(MIXES)
def test_each_instant_has_the_power_that_each_type_then_had(mix: tuple[Steps, ...]) -> None:
    """Samples equal a sum quarter by quarter, and none is missing where there is generation."""
    found = by_time(intensities(each for steps in mix for each in steps))
    latest: float | None = None
    for quarter in range(4 * HOURS):
        when = START + quarter * QUARTER
        wanted = expected(mix, when)
        if wanted is None:
            assert when not in found
            latest = None
            continue
        latest = found.get(when, latest)
        assert latest == pytest.approx(wanted)


@examples(0.25)
@given(MIXES)
def test_series_that_overlap_change_nothing(mix: tuple[Steps, ...]) -> None:
    """The same steps twice, and coarse ones below finer ones, are not added."""
    steps = [each for found in mix for each in found]
    coarse = [
        Generation(each.kind, START + hour * HOUR, HOUR, 1.0)
        for found in mix
        for hour in range(HOURS)
        for each in found[:1]
        if any(s.step == QUARTER and s.since == START + hour * HOUR for s in found)
    ]

    assert by_time(intensities([*steps, *steps])) == by_time(intensities(steps))
    assert by_time(intensities([*steps, *coarse])) == by_time(intensities(steps))


@examples(0.4)
@given(MIXES, st.data())
def test_nothing_incomplete_is_called_measured(mix: tuple[Steps, ...], data: st.DataObject) -> None:
    """Without some steps of a type, every value called measured is that of the whole."""
    whole = {
        START + quarter * QUARTER: expected(mix, START + quarter * QUARTER)
        for quarter in range(4 * HOURS)
    }
    left = [[each for each in steps if data.draw(st.integers(0, 4))] for steps in mix]
    kinds = {steps[0].kind for steps in left if steps}
    complete = kinds == set(KINDS)  # a type that never comes is not known to exist
    for sample in intensities(each for steps in left for each in steps):
        if complete and sample.provenance == "measured":
            assert sample.intensity_gco2e_per_kwh == pytest.approx(whole[sample.since])


def test_a_type_that_mattered_little_is_counted_as_it_last_was() -> None:
    """The sun's series ends at dusk; coal's end is no dusk."""
    coal = [Generation("B05", START + hour * HOUR, HOUR, 4000.0) for hour in range(3)]
    sun = [Generation("B16", START, HOUR, 500.0), Generation("B16", START + HOUR, HOUR, 10.0)]

    night = intensities([*coal, *sun])
    without_coal = intensities(
        [*coal[:2], *(Generation("B16", each.since, HOUR, 9.0) for each in coal)]
    )

    assert [each.provenance for each in night] == ["measured", "measured", "estimated"]
    assert [each.since for each in without_coal] == [START, START + HOUR]
