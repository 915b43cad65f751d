"""Segments of a language model that keep its objectives of tokens in bursts."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import Objective
from services.kit.profiles.core.language import TokenTimes
from services.planner.core.model import Model, SegmentKind, Variant
from services.planner.core.problem.latency_rule import admissible_rps
from services.planner.core.problem.text_rule import Load, least_segments
from tests.support.planner import fleets

TIMES = TokenTimes(first_token_s=0.2, token_s=0.03, prompt_s=0.1, prompt_deviation_s=0.1)


def kind(times: TokenTimes | None = TIMES, slots: int = 64, latency_s: float = 2.0) -> SegmentKind:
    """Return a segment whose slots hardly ever are all taken."""
    return SegmentKind(
        "m", "v", fleets.pool(), "7g.40gb", slots, 1, latency_s, slots / latency_s, 1.0, 1.0,
        token_times=times,
    )  # fmt: skip


def compound(load: Load, window_s: float, seed: int) -> list[float]:
    """Draw seconds of prompts that arrive in windows, in clusters of geometric size."""
    random = np.random.default_rng(seed)
    # of a compound Poisson process with geometric clusters: variance over mean is 2 * mean - 1
    mean = (load.at_1s + 1) / 2
    clusters = random.poisson(load.rate_rps * window_s / mean, 20_000)
    counts = [int(random.geometric(1 / mean, each).sum()) for each in clusters]
    return [float(random.exponential(0.1, each).sum()) for each in counts]


@pytest.mark.parametrize("dispersion", [1.0, 4.0, 15.0])
@pytest.mark.parametrize("rate_rps", [3.0, 12.0, 60.0])
def test_what_arrives_in_a_second_is_done_in_time_in_99_of_100(
    dispersion: float, rate_rps: float
) -> None:
    """Poisson or in clusters, with prompts that differ: few windows have more than is planned."""
    load = Load(rate_rps, dispersion, 1.0)
    segments = math.ceil(least_segments(kind(), load, 2.0, 99.0))
    most_s = segments * (1.0 + 2.0 - TIMES.first_token_s)

    late = np.mean([work_s > most_s for work_s in compound(load, 1.0, 7)])

    assert late <= 0.015  # the tail of clusters is somewhat longer than the gamma's


def test_bursts_of_long_prompts_take_more_segments_than_their_mean() -> None:
    """By the mean 1.2 segments compute 12 prompts of 0.1 s a second."""
    steady, bursty = (
        least_segments(kind(), Load(12.0, each, each), 1.0, 99.0) for each in (1.0, 15.0)
    )

    assert 1.2 < steady < 2.5
    assert bursty > 1.5 * steady


@given(
    rate_rps=st.floats(0.1, 1e3),
    dispersion=st.floats(1.0, 30.0),
    more=st.floats(1.0, 3.0),
    ttft_s=st.floats(0.3, 10.0),
)
def test_more_load_burstier_or_an_earlier_objective_never_take_fewer(
    rate_rps: float, dispersion: float, more: float, ttft_s: float
) -> None:
    load = Load(rate_rps, dispersion, dispersion)
    least = least_segments(kind(), load, ttft_s, 99.0)

    for harder, objective_s in (
        (load._replace(rate_rps=more * rate_rps), ttft_s),
        (load._replace(at_1s=more * dispersion, at_10s=more * dispersion), ttft_s),
        (load, max(ttft_s / more, 0.25)),
    ):
        assert least_segments(kind(), harder, objective_s, 99.0) >= least * (1 - 1e-9)


def test_answers_of_a_burst_have_slots() -> None:
    """Twenty answers at a time in the mean, Poisson: 31 slots are enough in 99 of 100 moments."""
    times = replace(TIMES, prompt_s=0.0)
    found = 8 * least_segments(kind(times, 8, 2.0), Load(10.0), math.inf, 99.0)

    assert 30 <= found <= 32


def test_no_number_keeps_a_first_token_that_takes_longer_by_itself() -> None:
    assert least_segments(kind(), Load(1.0), TIMES.first_token_s, 99.0) == math.inf


def test_a_segment_is_given_as_much_as_keeps_the_first_token_in_time() -> None:
    """With loose objectives utilisation limits it; with a strict one, bursts of prompts do."""
    its = kind()
    loose = Model("m", 60.0, 99.0, 12.0, (Variant("v", 1.0, fleets.model().variants[0].profile),))
    strict = replace(loose, slo_first_token_s=0.5)

    given_loose, given_strict = (
        admissible_rps(Objective(), model, its) for model in (loose, strict)
    )

    assert given_strict < given_loose <= Objective().max_utilisation * its.throughput_rps
    assert given_strict == pytest.approx(12.0 / least_segments(its, Load(12.0), 0.5, 99.0))
