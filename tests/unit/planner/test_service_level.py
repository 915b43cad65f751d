"""Missed objectives: when they count, and how much more load the next plan provides for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.planner.core.service_level import ServiceLevel, ServiceTarget

LOAD = {"digits": 1.0}
AIM = ServiceTarget(late_share=0.05, accuracies={"small": 90.0, "large": 100.0})


def level() -> ServiceLevel:
    return ServiceLevel({"digits": AIM})


def seen(late: int, answered: int, variant: str = "large") -> ServiceLevel:
    found = level()
    found.observe({"digits": late}, {"digits": {variant: answered}}, 0.0)
    return found


@pytest.mark.parametrize(
    ("late", "answered", "broken"),
    [
        (0, 1000, False),
        (50, 1000, False),  # exactly what is allowed
        (70, 1000, False),  # by chance, one window in 700
        (72, 1000, True),
        (49, 49, False),  # too few answers to say anything
        (50, 50, True),
    ],
)
def test_more_late_than_allowed_counts_only_beyond_chance(
    late: int, answered: int, broken: bool
) -> None:
    found = seen(late, answered).late()

    assert [each.model for each in found] == (["digits"] if broken else [])


def test_answers_less_accurate_than_the_floor_are_reported() -> None:
    found = seen(0, 100, "small").inaccurate(0.95)

    assert [(each.seen, each.promised) for each in found] == [(0.9, 0.95)]
    assert seen(0, 100, "small").inaccurate(0.9) == ()
    assert seen(0, 100).inaccurate(1.0) == ()


def test_what_was_seen_fades() -> None:
    """A bad minute is made good by good ones that follow."""
    found = seen(100, 100)
    for second in range(1, 181):
        found.observe({"digits": 0}, {"digits": {"large": 10}}, float(second))

    assert found.late() == ()


def test_another_plan_resets_the_counts() -> None:
    found = seen(100, 100)
    found.forget()

    assert found.late() == ()


def test_models_that_the_deployment_lacks_do_not_count() -> None:
    found = level()
    found.observe({"old": 100}, {"old": {"v": 100}}, 0.0)

    assert found.late() == ()


def test_late_requests_demand_more_capacity_up_to_twice_the_load_and_that_wears_off() -> None:
    found = seen(100, 100)
    factors = []
    for _ in range(5):
        found.demand_more(LOAD, 0.0, 0.0)
        factors.append(found.provided_rps(LOAD, 0.0)["digits"])

    assert factors == [1.25, 1.5625, 1.953125, 2.0, 2.0]
    assert found.provided_rps(LOAD, 3600.0)["digits"] > 1.9
    assert 1.0 < found.provided_rps(LOAD, 86_400.0)["digits"] < 1.4
    assert found.provided_rps(LOAD, 7 * 86_400.0)["digits"] == 1.0


def test_a_load_that_grows_into_its_headroom_gets_no_more_and_a_smaller_one_gets_less() -> None:
    """Raised twice at 10 req/s, to 15.6: enough until the load itself is more."""
    found = seen(100, 100)
    for _ in range(2):
        found.demand_more({"digits": 10.0}, 0.0, 0.0)
    loads = (4.0, 10.0, 12.0, 15.6, 20.0)
    provided = [found.provided_rps({"digits": load}, 0.0)["digits"] for load in loads]

    assert provided == [6.25, 15.625, 15.625, 15.625, 20.0]


@pytest.mark.parametrize(("raised", "more"), [(0, True), (3, True), (4, False)])
def test_more_may_be_demanded_until_twice_the_load_is_provided_for(raised: int, more: bool) -> None:
    found = seen(100, 100)
    for _ in range(raised):
        found.demand_more(LOAD, 0.0, 0.0)

    assert found.may_demand_more(1.0) is more
    assert not found.may_demand_more(1.0, learned={"digits"})


def test_poor_answers_lift_the_floor_by_what_was_missing() -> None:
    found = seen(0, 100, "small")
    found.demand_more(LOAD, 0.95, 0.0)

    assert found.floor_lift(0.0) == pytest.approx(0.05)
    assert found.provided_rps(LOAD, 0.0) == LOAD


def test_what_no_plan_makes_more_accurate_is_borne_ever_longer_until_another_cause_comes() -> None:
    found, now_s, borne_s = level(), 0.0, []
    for _ in range(8):
        found.decided(broken=True, changed=False, now_s=now_s)
        began_s = now_s
        while found.bears(now_s):
            now_s += 60.0
        borne_s.append(now_s - began_s)
    found.decided(broken=True, changed=True, now_s=now_s)
    helped = found.bears(now_s)
    found.decided(broken=False, changed=True, now_s=now_s)
    found.decided(broken=True, changed=False, now_s=now_s)

    assert borne_s == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert not helped, "a plan that came of it deserves a look"
    assert (found.bears(now_s + 59.0), found.bears(now_s + 60.0)) == (True, False)


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200), st.floats(0, 100)), max_size=20)
)
def test_a_kept_promise_demands_nothing(reports: list[tuple[int, int, float]]) -> None:
    found, now_s = level(), 0.0
    for answered, late, pause_s in reports:
        now_s += pause_s
        allowed = min(late, int(answered * 0.05))
        found.observe({"digits": allowed}, {"digits": {"large": answered}}, now_s)
        found.demand_more(LOAD, 1.0, now_s)

    assert found.provided_rps(LOAD, now_s) == LOAD
    assert found.floor_lift(now_s) == 0.0
