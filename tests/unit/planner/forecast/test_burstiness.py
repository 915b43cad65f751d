"""Burstiness of a load as it is learnt from routers' counts of each second."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from cinquefoil.planner.v1.records import Dispersion
from services.planner.core.forecast.burstiness import (
    BLOCK_S,
    EARLY_S,
    MAX_DISPERSION,
    Burstiness,
)
from services.planner.core.model import POISSON

START = 1_700_000_000


class Clock:
    def __init__(self) -> None:
        self.now_s = float(START)

    def __call__(self) -> float:
        return self.now_s


def learnt(
    counts: NDArray[np.int64],
    split: Callable[[int, int], tuple[int, ...]] = lambda count, _: (count,),
    initial: Dispersion = POISSON,
) -> Dispersion:
    """Return what is known after counts of one model, reported by as many routers as `split`."""
    clock = Clock()
    found = Burstiness({"digits": initial}, clock)
    for index, count in enumerate(counts.tolist()):
        clock.now_s = START + index + 1
        for router, part in enumerate(split(count, index)):
            found.observe(str(router), START + index, {"digits": [part]})
    return found.known["digits"]


def gamma_counts(rate_rps: float, cv: float, seconds: int, seed: int = 1) -> NDArray[np.int64]:
    shape = cv**-2
    draw = np.random.default_rng(seed).gamma(
        shape, 1 / shape / rate_rps, int(2 * rate_rps * seconds)
    )
    return np.histogram(np.cumsum(draw), np.arange(seconds + 1))[0]


def switching_counts(low: float, high: float, stay_s: int, seconds: int) -> NDArray[np.int64]:
    """Return counts of a Poisson process whose rate changes about every `stay_s`."""
    rng = np.random.default_rng(2)
    state = np.cumsum(rng.random(seconds) < 1 / stay_s) % 2
    return rng.poisson(np.where(state, high, low))


@pytest.mark.parametrize("rate_rps", [0.3, 5.0, 500.0])
def test_a_poisson_process_stays_one_at_any_rate(rate_rps: float) -> None:
    """No plan is made for bursts that are chance."""
    for seed in range(5):
        counts = np.random.default_rng(seed).poisson(rate_rps, 3000)

        assert learnt(counts) == POISSON


def test_independent_gaps_have_the_square_of_their_variation() -> None:
    """Gamma gaps of CV 3 tend to 9 in either window; learnt within a few minutes."""
    found = learnt(gamma_counts(200.0, 3.0, 1000))

    assert found.at_1s == pytest.approx(9.0, rel=0.35)
    assert found.at_10s == pytest.approx(9.0, rel=0.5)


def test_a_rate_that_switches_shows_in_the_longer_window() -> None:
    """MMPP 3:1 differs from clustered gaps by its growth from one second to ten."""
    found = learnt(switching_counts(50.0, 150.0, 10, 3000))

    assert found.at_1s == pytest.approx(1 + 100 / 4, rel=0.35)
    assert found.at_10s > 3 * found.at_1s


def test_bursts_that_a_balancer_splits_are_one_burst() -> None:
    """Each of four routers sees a fraction of the bursts; their sum is what plans must hold."""
    counts = gamma_counts(200.0, 3.0, 2000)
    rng = np.random.default_rng(3)

    def split(count: int, _: int) -> tuple[int, ...]:
        return tuple(rng.multinomial(count, [0.25] * 4).tolist())

    assert learnt(counts, split).at_1s == pytest.approx(learnt(counts).at_1s, rel=0.05)


def test_a_day_is_no_burst() -> None:
    """Slow changes belong to the load forecast."""
    rate = 100 * (1 + 0.9 * np.sin(np.arange(7200) / 86400 * 2 * np.pi))

    assert learnt(np.random.default_rng(4).poisson(rate)) == POISSON


def test_bursts_count_before_the_first_block_is_complete() -> None:
    """Half a minute of them is planned for; as much of a steady load changes nothing."""
    bursts = np.tile([0] * 9 + [300], 4)

    assert learnt(bursts[:EARLY_S]).at_1s > 4
    assert learnt(np.random.default_rng(7).poisson(30.0, 40)) == POISSON


def test_the_initial_value_fades() -> None:
    """A model set to be bursty that is not becomes one that is not."""
    counts = np.random.default_rng(5).poisson(50.0, 6000)

    assert learnt(counts[:BLOCK_S], initial=Dispersion(9.0, 9.0)).at_1s > 4
    assert learnt(counts, initial=Dispersion(9.0, 9.0)).at_1s < 1.5


def test_lies_are_bounded_and_other_times_ignored() -> None:
    """Counts of the future, of the past and twice of one second change nothing."""
    clock = Clock()
    found = Burstiness({"digits": POISSON}, clock)
    for index in range(10 * BLOCK_S):
        clock.now_s = START + index + 1
        found.observe("liar", START + 10**9, {"digits": [10**5] * 60})
        found.observe("liar", 0, {"digits": [10**5] * 60})
        found.observe("liar", START + index, {"digits": [10], "other": [3]})
        found.observe("liar", START + index, {"digits": [10**5]})
    assert found.known == {"digits": POISSON}

    for index in range(10 * BLOCK_S, 30 * BLOCK_S):
        clock.now_s = START + index + 1
        found.observe("liar", START + index, {"digits": [10**5 * (index % 100 == 0)]})
    assert max(found.known["digits"].at_1s, found.known["digits"].at_10s) <= MAX_DISPERSION


def test_a_router_that_is_silent_delays_nothing_for_long() -> None:
    """A second closes without the reports of a router that stopped."""
    clock, rng = Clock(), np.random.default_rng(6)
    found = Burstiness({"digits": POISSON}, clock)
    found.observe("silent", START - 1, {"digits": [5]})
    for index, count in enumerate(gamma_counts(100.0, 3.0, 600)):
        clock.now_s = START + index + 1 + rng.random() / 10
        found.observe("router", START + index, {"digits": [int(count)]})
    assert found.known["digits"].at_1s > 4


def test_a_changed_initial_value_replaces_what_was_learnt() -> None:
    clock = Clock()
    found = Burstiness({"digits": POISSON, "old": POISSON}, clock)
    found.configure({"digits": Dispersion(4.0, 4.0), "new": POISSON})

    assert found.known == {"digits": Dispersion(4.0, 4.0), "new": POISSON}
