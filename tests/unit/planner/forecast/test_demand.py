"""The load that the planner provides for."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import LoadForecast
from services.planner.core.forecast.demand import LATE_S, MIN_REQUESTS, ConfiguredLoad, Demand
from services.planner.core.forecast.load_forecast import MARGIN
from tests.support.examples import examples

START_S = 1_800_000_000.0  # a full hour, so that intervals begin with the test


class Time:
    """Unix time that moves only by `pass_`."""

    def __init__(self) -> None:
        self.now_s = START_S

    def __call__(self) -> float:
        return self.now_s

    def pass_(self, length_s: float) -> None:
        self.now_s += length_s


@pytest.fixture
def time() -> Time:
    return Time()


def demand_of(time: Time, *, digits: float = 1.0, interval_s: float = 60.0) -> Demand:
    return Demand(
        {"digits": ConfiguredLoad(digits, digits)}, LoadForecast(interval_s=interval_s), time
    )


def report(
    demand: Demand, time: Time, load_rps: Callable[[int], float], seconds: int, router: str = "r-1"
) -> None:
    """Report a load every second, as a router does."""
    for second in range(seconds):
        time.pass_(1.0)
        demand.observe(router, {"digits": round(load_rps(second))}, 1.0)


def test_what_is_configured_is_the_least(time: Time) -> None:
    demand = demand_of(time, digits=60.0)
    time.pass_(1.0)
    demand.observe("r-1", {"digits": 1}, 1.0)

    assert demand.rates_rps() == {"digits": 60.0}


@given(rate_rps=st.floats(70, 1e4), window_s=st.floats(0.2, 5))
def test_a_steady_load_is_provided_for_from_the_first_seconds_on(
    rate_rps: float, window_s: float
) -> None:
    """With the margin of a planner that knows nothing yet, and never less than what arrives."""
    time = Time()
    demand = demand_of(time)
    for _ in range(10):
        time.pass_(window_s)
        demand.observe("r-1", {"digits": round(rate_rps * window_s)}, window_s)

    assert demand.rates_rps()["digits"] == pytest.approx(MARGIN * rate_rps, rel=0.05)


def test_the_busiest_second_of_an_interval_is_what_the_next_one_is_expected_to_need(
    time: Time,
) -> None:
    demand = demand_of(time)
    report(demand, time, lambda second: 300 if second == 20 else 100, 61)

    forecast = demand.forecasts()["digits"]
    assert forecast.start_s == START_S + 60
    assert forecast.expected_rps == pytest.approx(300)
    assert demand.rates_rps()["digits"] == pytest.approx(forecast.high_rps)


def test_a_load_above_its_forecast_counts_at_once(time: Time) -> None:
    demand = demand_of(time)
    report(demand, time, lambda _: 100, 70)
    report(demand, time, lambda _: 500, 1)

    assert demand.rates_rps()["digits"] == pytest.approx(500)


def test_what_arrives_is_the_mean_of_the_last_interval_and_the_present_one(time: Time) -> None:
    """Not the busiest second, which is what is provided for."""
    demand = demand_of(time, digits=500.0)
    assert demand.arriving_rps() == {}
    report(demand, time, lambda second: 300 if second == 20 else 100, 60)
    assert demand.arriving_rps() == pytest.approx({"digits": 6200 / 60})
    report(demand, time, lambda _: 10, 60)
    report(demand, time, lambda _: 40, 30)
    assert demand.arriving_rps()["digits"] == pytest.approx((60 * 10 + 30 * 40) / 90)


def test_routers_add_up_second_by_second(time: Time) -> None:
    """Not their maxima, which need not come at the same time."""
    demand = demand_of(time)
    for second in range(61):
        time.pass_(1.0)
        demand.observe("r-1", {"digits": 200 if second % 2 else 100}, 1.0)
        demand.observe("r-2", {"digits": 100 if second % 2 else 200}, 1.0)

    assert demand.forecasts()["digits"].expected_rps == pytest.approx(300)


def test_a_router_that_left_is_not_waited_for(time: Time) -> None:
    demand = demand_of(time)
    time.pass_(1.0)
    demand.observe("r-2", {"digits": 10}, 1.0)
    report(demand, time, lambda _: 100, 59)
    assert not demand.forecasts()  # r-2 may still report the end of the interval
    demand.forget("r-2")

    assert demand.forecasts()["digits"].start_s == START_S + 60


def test_a_router_that_falls_silent_is_waited_for_shortly(time: Time) -> None:
    demand = demand_of(time)
    time.pass_(1.0)
    demand.observe("r-2", {"digits": 10}, 1.0)
    report(demand, time, lambda _: 100, 59)
    time.pass_(LATE_S)

    assert demand.forecasts()["digits"].start_s == START_S + 60


@given(st.lists(st.floats(-0.4, 0.4), min_size=30, max_size=60))
def test_reports_that_come_a_little_early_or_late_make_no_peaks(jitter_s: list[float]) -> None:
    time = Time()
    demand = demand_of(time)
    demand.observe("r-1", {"digits": 100}, 1.0)
    for second, late_s in enumerate(jitter_s, start=1):
        time.now_s = START_S + second + late_s
        demand.observe("r-1", {"digits": 100}, 1.0)

    assert demand.rates_rps()["digits"] <= 100 * MARGIN * (1 + 1e-6)


def test_a_burst_of_milliseconds_is_not_a_load(time: Time) -> None:
    """Two arrivals in the first 2 ms would else read as 1000 req/s."""
    demand = demand_of(time, digits=10.0)
    time.pass_(0.002)
    demand.observe("r-1", {"digits": 2}, 0.002)

    assert demand.rates_rps()["digits"] == 10.0


def test_load_that_ends_is_forgotten_within_minutes(time: Time) -> None:
    demand = demand_of(time)
    report(demand, time, lambda _: 100, 600)
    assert demand.rates_rps()["digits"] >= 100
    report(demand, time, lambda _: 0, 122)

    assert demand.rates_rps()["digits"] < 4.0


def test_after_a_silence_nothing_is_known(time: Time) -> None:
    """Without routers there are no requests; what is configured stays."""
    demand = demand_of(time, digits=10.0)
    report(demand, time, lambda _: 100, 120)
    demand.forget("r-1")
    assert demand.rates_rps()["digits"] > 90
    time.pass_(600.0)

    assert demand.rates_rps() == {"digits": 10.0}
    assert not demand.forecasts()


def test_half_an_interval_without_reports_is_a_hole_not_a_calm(time: Time) -> None:
    demand = demand_of(time)
    report(demand, time, lambda _: 100, 60)
    report(demand, time, lambda _: 10, 20)
    demand.forget("r-1")
    time.pass_(44.0)

    assert demand.forecasts()["digits"].expected_rps == pytest.approx(100)


def test_reports_of_a_closed_interval_come_too_late(time: Time) -> None:
    demand = demand_of(time)
    report(demand, time, lambda _: 100, 65)
    before = demand.forecasts()
    demand.observe("r-9", {"digits": 3000}, 30.0)

    assert demand.forecasts() == before


def test_of_an_endless_window_only_what_is_open_counts(time: Time) -> None:
    """A router's first report may cover a year; it costs no more than an interval."""
    demand = demand_of(time)
    time.pass_(30.0)
    demand.observe("r-1", {"digits": 10**14}, 1e12)

    assert demand.rates_rps()["digits"] == pytest.approx(100 * MARGIN, rel=0.01)


def test_unknown_models_and_empty_windows_say_nothing(time: Time) -> None:
    demand = demand_of(time)
    demand.observe("r-1", {"other": 1000, "digits": 50}, 0.0)
    demand.observe("r-1", {"digits": 50}, float("nan"))
    demand.observe("r-1", {"digits": 50}, float("inf"))
    time.pass_(10.0)
    demand.observe("r-1", {"other": 1000}, 10.0)

    assert demand.rates_rps() == {"digits": 1.0}


@pytest.mark.parametrize(("rate_rps", "seed"), [(0.2, 1), (2.0, 2), (10.0, 1)])
def test_a_slow_model_is_provided_for_by_its_mean_not_by_its_busiest_second(
    rate_rps: float, seed: int
) -> None:
    """At most 2.5 times the mean, and hardly ever another load, for eight hours."""
    time, draw = Time(), np.random.default_rng(seed)
    demand = Demand(
        {"digits": ConfiguredLoad(rate_rps, rate_rps)}, LoadForecast(), time, scale_down_s=300.0
    )
    provided: list[float] = []
    for _ in range(2880):
        time.pass_(10.0)
        demand.observe("r-1", {"digits": int(draw.poisson(10 * rate_rps))}, 10.0)
        now_rps = demand.rates_rps()["digits"]
        assert now_rps <= 2.5 * rate_rps
        if not provided or abs(now_rps / provided[-1] - 1) > 0.2:
            provided.append(now_rps)

    assert len(provided) <= 10


def test_a_load_that_rises_counts_at_once_and_one_that_falls_when_it_has_been_lower(
    time: Time,
) -> None:
    demand = Demand({"digits": ConfiguredLoad(1.0, 1.0)}, LoadForecast(), time, scale_down_s=300.0)
    report(demand, time, lambda _: 200, 600)
    calm_rps = demand.rates_rps()["digits"]
    report(demand, time, lambda _: 500, 1)
    assert demand.rates_rps()["digits"] == pytest.approx(500)
    for _ in range(299):
        report(demand, time, lambda _: 200, 1)
        assert demand.rates_rps()["digits"] >= 500
    report(demand, time, lambda _: 200, 300)

    assert demand.rates_rps()["digits"] == pytest.approx(calm_rps, rel=0.2)


@pytest.mark.parametrize("rate_rps", [0.2, 5.0])
def test_a_slow_model_whose_load_leaps_is_provided_for_within_seconds(
    time: Time, rate_rps: float
) -> None:
    """The window is as long as its requests are rare: the new ones make it short."""
    demand = Demand({"digits": ConfiguredLoad(0.1, 0.1)}, LoadForecast(), time, scale_down_s=300.0)
    report(
        demand,
        time,
        lambda second: float(second % round(1 / rate_rps) == 0) if rate_rps < 1 else rate_rps,
        900,
    )
    report(demand, time, lambda _: 150, 2)

    assert demand.rates_rps()["digits"] >= 140


def test_a_burst_of_a_model_whose_plans_count_bursts_is_not_counted_twice(time: Time) -> None:
    """Four quiet seconds and a busy one: after ten minutes, the mean of 30 s, not the busiest."""
    plain, apart = (
        Demand(
            {"digits": ConfiguredLoad(1.0, 1.0)},
            LoadForecast(interval_s=60.0),
            time,
            bursts_apart=each,
        )
        for each in ((), ("digits",))
    )
    for second in range(720):
        time.pass_(1.0)
        for demand in (plain, apart):
            demand.observe("r-1", {"digits": 0 if second % 5 else 500}, 1.0)

    assert plain.rates_rps()["digits"] >= 500
    assert 100 <= apart.rates_rps()["digits"] <= 1.3 * 100


def test_a_rise_of_such_a_model_counts_within_half_a_minute(time: Time) -> None:
    """A mean over more would find out too late that GPUs are missing."""
    demand = Demand(
        {"digits": ConfiguredLoad(1.0, 1.0)},
        LoadForecast(interval_s=60.0),
        time,
        bursts_apart={"digits"},
    )
    report(demand, time, lambda _: 50.0, 90)
    report(demand, time, lambda _: 150.0, 30)

    assert demand.rates_rps()["digits"] >= 145


class Instances:
    """Requests that instances have answered: so many of what arrives, as agents count them."""

    def __init__(self) -> None:
        self.answered = 0.0

    def __call__(self) -> dict[str, float]:
        return {"digits": self.answered}


def serving(time: Time) -> tuple[Demand, Instances]:
    instances = Instances()
    return Demand(
        {"digits": ConfiguredLoad(1.0, 1.0)}, LoadForecast(), time, 300.0, answered=instances
    ), instances


def pass_seconds(
    served: tuple[Demand, Instances], seconds: int, load_rps: dict[str, int], answered_rps: float
) -> None:
    """Report the loads of routers, second by second, of which some is answered."""
    (demand, instances), time = served, served[0]._now_s
    assert isinstance(time, Time)
    for _ in range(seconds):
        time.pass_(1.0)
        instances.answered += answered_rps
        for router, rate_rps in load_rps.items():
            demand.observe(router, {"digits": rate_rps}, 1.0)


@pytest.mark.parametrize("lasts_s", [1, 5, 59, 60, 61, 200, 1010])
def test_a_lie_does_not_outlast_its_router(lasts_s: int, time: Time) -> None:
    """A hundred thousand requests a second that no instance answered go when the router goes."""
    demand, instances = serving(time)
    pass_seconds((demand, instances), 200, {"honest": 50}, 50)
    pass_seconds((demand, instances), lasts_s, {"honest": 50, "liar": 100_000}, 50)
    assert demand.rates_rps()["digits"] > 100_000  # it may be true
    demand.forget("liar")

    assert demand.rates_rps()["digits"] < 2.5 * 50
    pass_seconds((demand, instances), 600, {"honest": 50}, 50)
    assert demand.rates_rps()["digits"] < 1.5 * 50
    assert demand.forecasts()["digits"].high_rps < 1.5 * 50


@pytest.mark.parametrize("served", [1.0, 0.9, 0.7])
@pytest.mark.parametrize("runs_s", [3, 58, 60, 61, 150])
def test_an_honest_routers_demand_outlasts_its_restart(
    runs_s: int, served: float, time: Time
) -> None:
    """Answers come a little later than requests, and some never do."""
    demand, instances = serving(time)
    pass_seconds((demand, instances), runs_s, {"r": 100}, 0)
    instances.answered += served * 100 * max(runs_s - 3, 0)
    before_rps = demand.rates_rps()["digits"]
    demand.forget("r")
    time.pass_(9.0)

    if runs_s > 3:
        assert demand.rates_rps()["digits"] == pytest.approx(before_rps, rel=0.1)


@pytest.mark.parametrize("runs_s", [58, 61, 150, 1000])
def test_an_overloaded_routers_restart_leaves_more_than_is_served(runs_s: int, time: Time) -> None:
    """Its instances are busy with a tenth of what it has: none of them is given up meanwhile."""
    demand, instances = serving(time)
    pass_seconds((demand, instances), runs_s, {"r": 500}, 50)
    demand.forget("r")
    time.pass_(9.0)

    assert 1.5 * 50 <= demand.rates_rps()["digits"] <= 3 * 50


@examples(0.25)
@given(
    st.lists(
        st.tuples(st.sampled_from([1, 30, 121, 200]), st.integers(0, 2000), st.floats(0, 1)),
        min_size=1,
        max_size=6,
    )
)
def test_a_restart_leaves_at_least_what_is_served(phases: list[tuple[int, int, float]]) -> None:
    """However overloaded a router was, as much is provided as its instances answered."""
    time = Time()
    demand, instances = serving(time)
    for seconds, rate_rps, share in phases:
        pass_seconds((demand, instances), seconds, {"r": rate_rps}, share * rate_rps)
    seconds, rate_rps, share = phases[-1]
    demand.forget("r")

    if share * rate_rps * seconds > 2 * MIN_REQUESTS and seconds > 60 * 2:
        assert demand.rates_rps()["digits"] >= 0.99 * share * rate_rps


def parking(time: Time, *, initial_rps: float = 40.0, least_rps: float = 0.0) -> Demand:
    """A model with an initial load and a least one."""
    load = ConfiguredLoad(initial_rps, least_rps)
    return Demand({"digits": load}, LoadForecast(), time, scale_down_s=300.0)


def test_the_initial_load_counts_until_there_is_a_forecast_and_then_the_least(time: Time) -> None:
    """A model with few requests is not planned for what the file says at first."""
    demand = parking(time, least_rps=2.0)
    assert demand.rates_rps() == {"digits": 40.0}
    report(demand, time, lambda _: 5, 900)

    assert 5.0 <= demand.rates_rps()["digits"] < 15.0
    report(demand, time, lambda _: 0, 1800)
    assert demand.rates_rps() == {"digits": 2.0}
    assert demand.unused_s() == float("inf")


def test_a_model_without_requests_is_parked_and_one_request_wakes_it(time: Time) -> None:
    """It is parked when the last request is `scale_down_s` ago, not before."""
    demand = parking(time)
    report(demand, time, lambda _: 5, 120)
    report(demand, time, lambda _: 0, 299)
    assert demand.rates_rps()["digits"] > 0
    assert demand.unused_s() == pytest.approx(1.0)
    report(demand, time, lambda _: 0, 1)
    assert demand.rates_rps() == {"digits": 0.0}

    report(demand, time, lambda _: 1, 1)
    assert 0 < demand.rates_rps()["digits"] < 5.0


def test_a_model_that_never_had_a_request_is_planned_for_its_initial_load_and_then_parked(
    time: Time,
) -> None:
    demand = parking(time)
    for _ in range(299):
        assert demand.rates_rps() == {"digits": 40.0}
        report(demand, time, lambda _: 0, 1)
    report(demand, time, lambda _: 0, 1)

    assert demand.rates_rps() == {"digits": 0.0}


def test_a_parked_model_stays_parked_over_a_restart(time: Time) -> None:
    """The next planner does not start it for the initial load."""
    demand = parking(time)
    demand.park(["digits", "gone"])
    assert demand.rates_rps() == {"digits": 0.0}
    report(demand, time, lambda _: 1, 1)

    assert 0 < demand.rates_rps()["digits"] < 5.0
