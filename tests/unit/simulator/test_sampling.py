"""Stretches of time that are simulated, and events that wake a simulation that skips."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from simpy import Environment

from services.simulator.scenario import Sampling
from services.simulator.stats.sampled_intervals import Recorder
from services.simulator.stats.sampling import Sampler
from services.simulator.timeline import Timeline

SETTINGS = Sampling(window_s=10, period_s=100, settle_s=20, least_requests=50)


@dataclass
class Stage:
    """A sampler over a load, with a queue and a rollout that tests set."""

    arrival_s: np.ndarray[tuple[int], np.dtype[np.float64]]
    waiting: dict[str, int] = field(default_factory=lambda: {"m": 0})
    rolling: bool = False

    def __post_init__(self) -> None:
        self.env = Environment()
        self.timeline = Timeline(self.env)
        self.recorder = Recorder({"m": self.arrival_s}, {}, 0.0)
        self.sampler = Sampler(
            SETTINGS, self.timeline, self.recorder, lambda: self.waiting, lambda: self.rolling
        )
        self.env.process(self.sampler.run())

    def skipped(self, until_s: float) -> list[tuple[float, float]]:
        """Run; return the stretches that were skipped."""
        self.env.run(until=until_s)
        self.recorder.turn(until_s)
        return [(c.skip_s, c.end_s) for c in self.recorder.intervals if c.skip_s < c.end_s]


def load(rps: float, end_s: float = 500.0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Regular arrivals."""
    return np.arange(0.0, end_s, 1 / rps)


def test_after_a_start_and_a_window_the_rest_of_the_period_is_skipped() -> None:
    """A steady state is simulated once a period."""
    assert Stage(load(10)).skipped(225) == [(30, 120), (130, 220)]


def test_a_window_lasts_until_enough_requests_have_arrived() -> None:
    """At 2 req/s, 50 requests take 25 s: three windows."""
    assert Stage(load(2)).skipped(140)[0] == (50, 120)


def test_a_change_of_plan_ends_a_skip_and_is_simulated_until_it_has_settled() -> None:
    """No transient is skipped."""
    stage = Stage(load(10))
    stage.env.run(until=50)
    stage.sampler.disturb()

    assert stage.skipped(150) == [(30, 50), (80, 150)]


def test_nothing_is_skipped_during_a_rollout() -> None:
    """A rollout is simulated whole."""
    stage = Stage(load(10), rolling=True)

    assert stage.skipped(200) == []


@pytest.mark.parametrize(("waiting", "skips"), [(5, True), (300, False)])
def test_nothing_is_skipped_while_requests_pile_up(waiting: int, skips: bool) -> None:
    """A queue that grows is no steady state."""
    stage = Stage(load(10))
    stage.env.run(until=25)
    stage.waiting["m"] = waiting

    assert bool(stage.skipped(39)) is skips


def test_a_full_queue_that_stays_full_is_a_steady_state() -> None:
    """Overload that does not change may be skipped."""
    stage = Stage(load(10), waiting={"m": 1000})

    assert stage.skipped(120) == [(30, 120)]


def test_another_load_ends_a_skip() -> None:
    """A changed load is simulated from its first request."""
    stage = Stage(load(10))
    stage.env.run(until=60)
    stage.sampler.watch({"m": 104}, 10.0)
    assert not stage.timeline.going
    stage.sampler.watch({"m": 200}, 10.0)
    assert stage.timeline.going

    assert stage.skipped(65) == [(30, 60)]
