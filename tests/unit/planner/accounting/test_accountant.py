"""Every joule is booked once, in its hour, and the parts sum to the whole."""

import math
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.planner.core.accounting.account import Account, Spent, Tokens
from services.planner.core.accounting.accountant import Accountant
from services.planner.core.accounting.baseline import BaselineRates
from services.planner.core.accounting.counters import EnergyCounters, ModelEnergy, advance
from services.planner.core.accounting.entries import EntryKey, Figures, hours, values
from services.planner.core.accounting.site import EmbodiedCarbon, Site
from tests.support.examples import examples
from tests.support.planner.accounting_sites import RATES, SITES, START_S


def gpu_report(
    total_j: float, *, at_s: float = START_S, since_s: float = 1.0
) -> dict[str, EnergyCounters]:
    return {"GPU-a": EnergyCounters(since_s, at_s, total_j)}


def booked(accountant: Accountant) -> Figures:
    return sum(accountant.page().entries.values(), Figures())


# ---- counters --------------------------------------------------------------------------------


def test_a_first_reading_is_where_the_account_begins() -> None:
    """Energy drawn before the planner knew the GPU is not the fleet's."""
    accountant = Accountant(SITES.get)

    assert accountant.book("a", gpu_report(5e6)) == Spent()
    assert booked(accountant) == Figures()


def test_a_kilowatt_hour_costs_the_intensity_times_pue() -> None:
    """3.6 MJ at 200 g/kWh and a PUE of 1.5 are 300 g."""
    accountant = Accountant(SITES.get)
    accountant.book("a", gpu_report(0.0))

    spent = accountant.book("a", gpu_report(3.6e6))

    assert spent.energy_j == 3.6e6
    assert spent.carbon_gco2e == pytest.approx(300)
    assert accountant.account.total == spent


def test_a_kilowatt_hour_costs_its_price_times_pue_in_all_entries_together() -> None:
    """0.3 EUR/kWh at a PUE of 1.5: models and idle energy add up to 0.45 EUR."""
    accountant = Accountant({"a": replace(SITES["a"], eur_per_kwh=0.3)}.get)
    used = {"m": ModelEnergy(9e5, 0.0, 1)}
    for share in (0.0, 1.0):
        active = {name: each if share else ModelEnergy() for name, each in used.items()}
        counters = EnergyCounters(1.0, START_S + share, 3.6e6 * share, 9e5 * share, active)
        accountant.book("a", {"GPU-a": counters})
    found = accountant.page().entries

    by_model = {key.model: figures.cost_eur for key, figures in found.items()}
    assert by_model["m"] == pytest.approx(0.45 / 4)
    assert sum(by_model.values()) == pytest.approx(0.45)


def test_gpus_that_report_together_are_booked_as_one_and_cost_what_they_do_apart() -> None:
    """Booking a node's GPUs at once changes no figure of any entry."""
    boards = {
        "GPU-a": EmbodiedCarbon(2.0, {"m": 0.5}),
        "GPU-b": EmbodiedCarbon(1.0, {"m": 0.25, "n": 0.75}),
    }
    site = replace(SITES["a"], boards=boards)

    def entries(*reports: tuple[str, ...]) -> dict[EntryKey, Figures]:
        accountant = Accountant({"a": site}.get)
        for part, at_s in ((0.0, START_S), (1.0, START_S + 60.0)):
            for gpus in reports:
                used = {"m": ModelEnergy(600.0 * part, 10.0 * part, 7 * round(part))}
                counters = EnergyCounters(1.0, at_s, 1000.0 * part, 300.0 * part, used)
                accountant.book("a", dict.fromkeys(gpus, counters))
        return dict(accountant.page().entries)

    together, apart = entries(("GPU-a", "GPU-b")), entries(("GPU-a",), ("GPU-b",))

    assert together.keys() == apart.keys()
    for key, figures in together.items():
        assert values(figures) == pytest.approx(values(apart[key]))


def test_nothing_is_booked_before_the_intensity_is_known_and_nothing_is_lost() -> None:
    """The counters keep what was drawn until their node's intensity is known."""
    known: dict[str, Site] = {}
    accountant = Accountant(known.get, Account(gpus=gpu_report(100.0)))

    assert accountant.book("a", gpu_report(150.0)) == Spent()
    known["a"] = SITES["a"]

    assert accountant.book("a", gpu_report(170.0)).energy_j == 70.0


def test_what_is_reported_twice_or_late_is_counted_once() -> None:
    """Counters that stand still or go back draw nothing until they pass where they stood."""
    accountant = Accountant(SITES.get)
    for total_j in (10.0, 25.0, 25.0, 20.0, 22.0, 30.0):
        accountant.book("a", gpu_report(total_j))

    assert accountant.account.total.energy_j == 20.0


def test_a_new_account_counts_from_zero_and_its_predecessors_reports_are_late() -> None:
    """An agent that starts again counts from zero; reports of its past life draw nothing."""
    accountant = Accountant(SITES.get)
    for since_s, total_j in ((1.0, 100.0), (1.0, 150.0), (9.0, 40.0), (1.0, 160.0), (9.0, 45.0)):
        accountant.book("a", gpu_report(total_j, since_s=since_s))

    assert accountant.account.total.energy_j == 50.0 + 45.0


def test_an_account_of_unknown_start_is_new_where_its_total_is_lower() -> None:
    """Without a start to compare, a total that fell can only be another account's."""
    _, drawn = advance(EnergyCounters(0.0, 0.0, 100.0), EnergyCounters(0.0, 1.0, 30.0))

    assert drawn is not None
    assert drawn.total_j == 30.0


def test_an_account_of_totals_only_goes_on_with_parts() -> None:
    """Energy of before an older planner knew parts stays unattributed; then parts are known."""
    before = EnergyCounters(0.0, START_S, 100.0, models=None)
    now = EnergyCounters(1.0, START_S, 160.0, 90.0, {"m": ModelEnergy(60.0, 0.0, 7)})

    after, drawn = advance(before, now)
    _, later = advance(after, replace(now, total_j=170.0, models={"m": ModelEnergy(65.0, 0.0, 8)}))

    assert drawn is not None
    assert (drawn.total_j, drawn.unattributed_j, drawn.models) == (60.0, 60.0, {})
    assert later is not None
    assert (later.models, later.unattributed_j) == ({"m": ModelEnergy(5.0, 0.0, 1)}, 5.0)


# ---- what cannot be ----------------------------------------------------------------------------

LIMITED = {"a": replace(SITES["a"], max_power_w={"GPU-a": 400.0})}
FIGURES = st.floats(0, 1e300)
REPORTS = st.lists(
    st.tuples(
        st.floats(0, 10),  # since the report before, s
        st.builds(
            EnergyCounters,
            since_s=st.floats(-1, 2e12),
            at_s=st.floats(START_S, START_S + 1e4),
            total_j=FIGURES,
            idle_j=FIGURES,
            models=st.dictionaries(
                st.sampled_from("mn"),
                st.builds(ModelEnergy, FIGURES, FIGURES, st.integers(0, 2**64 - 1)),
            ),
        ),
    ),
    max_size=6,
)


def read(accountant: Accountant, counters: EnergyCounters, now_s: float) -> tuple[str, ...]:
    """Read a report as far as it can be true; return what was cut."""
    believed, clamped = accountant.bounded("a", {"GPU-a": counters}, now_s)
    accountant.book("a", believed)
    return clamped


@examples(0.4)
@given(REPORTS)
def test_no_report_books_more_than_the_gpu_can_have_drawn(
    reports: list[tuple[float, EnergyCounters]],
) -> None:
    """Whatever is forged: counters, the account's beginning, a thousand reports a second."""
    accountant = Accountant(LIMITED.get)
    accountant.book("a", gpu_report(0.0))
    now_s = 0.0
    for passed_s, counters in reports:
        now_s += passed_s
        read(accountant, replace(counters, at_s=START_S), now_s)

    limit_s = now_s + 10.0  # the slack of five seconds, before and after
    found = booked(accountant)
    assert found.energy_j <= 400.0 * 1.25 * limit_s * 1.001
    assert found.requests <= 1e6 * limit_s * 2
    assert all(math.isfinite(figure) for figure in values(found))


def test_what_was_cut_is_not_taken_for_a_counter_that_began_again() -> None:
    """The time it can have been drawn in is used up, but for a rounding error below zero."""
    accountant = Accountant(LIMITED.get)
    accountant.book("a", gpu_report(0.0))
    now_s = 0.0
    for passed_s, total_j in (
        *((0.0, 0.0), (2.0846049925498105, 3492.0)),
        *((6.090958310556788, 6588.0), (0.0, 6588.0)),
    ):
        now_s += passed_s
        read(accountant, EnergyCounters(0.0, START_S, total_j), now_s)

    assert accountant.account.total.energy_j <= 6588.0


def test_a_forged_counter_is_cut_named_and_does_not_hide_what_is_drawn_later() -> None:
    """A counter that jumps is cut to what the GPU can have drawn, and catches up with the truth."""
    accountant = Accountant(LIMITED.get)
    first = read(accountant, gpu_report(1000.0)["GPU-a"], 0.0)
    forged = read(accountant, gpu_report(1.9e9)["GPU-a"], 1.0)
    spent_j = accountant.account.total.energy_j
    for second in range(2, 100):
        read(accountant, gpu_report(1000.0 + 300 * second)["GPU-a"], float(second))

    assert (first, forged) == ((), ("total_j",))
    assert spent_j <= 400.0 * 1.25 * 6
    assert accountant.account.total.energy_j == pytest.approx(300 * 99)


def test_a_report_that_comes_late_is_not_cut() -> None:
    """Two reports in one go: the time since the one before counts for both."""
    accountant = Accountant(LIMITED.get)
    clamped = [
        read(accountant, gpu_report(400.0 * drawn_s)["GPU-a"], now_s)
        for drawn_s, now_s in ((0, 0.0), (1, 3.9), (4, 3.9), (5, 5.0))
    ]

    assert clamped == [()] * 4
    assert accountant.account.total.energy_j == 2000.0


def test_after_a_dropped_sheet_the_counters_bring_its_energy_again() -> None:
    """A page that the database refused costs no joule: the next reports bring them."""
    accountant = Accountant(SITES.get)
    accountant.book("a", gpu_report(0.0))
    written = accountant.page().account
    accountant.book("a", gpu_report(50.0))
    accountant.rewind(written)
    accountant.book("a", gpu_report(70.0))

    assert booked(accountant).energy_j == accountant.account.total.energy_j == 70.0


def test_gpus_that_are_long_gone_are_forgotten() -> None:
    """The account keeps the 65,536 GPUs that reported last."""
    accountant = Accountant(SITES.get)
    reported = {f"GPU-{number}": EnergyCounters(1.0, START_S, 5.0) for number in range(70_000)}
    accountant.book("a", reported)

    assert len(accountant.account.gpus) == 65_536
    assert "GPU-69999" in accountant.account.gpus


# ---- hours -----------------------------------------------------------------------------------


def test_a_stretch_is_spread_over_the_hours_it_touches() -> None:
    """Each hour gets its part of the time."""
    assert list(hours(START_S, START_S + 7200)) == [
        (datetime(2026, 3, 1, 11, tzinfo=UTC), 0.25),
        (datetime(2026, 3, 1, 12, tzinfo=UTC), 0.5),
        (datetime(2026, 3, 1, 13, tzinfo=UTC), 0.25),
    ]


@given(st.floats(0, 4e9), st.floats(-1e5, 1e7))
def test_the_shares_of_hours_sum_to_one(start_s: float, length_s: float) -> None:
    """Also where the clock went back, and where the stretch is years."""
    found = list(hours(start_s, start_s + length_s))

    assert sum(share for _, share in found) == pytest.approx(1)
    assert all(share >= 0 for _, share in found)
    assert [hour for hour, _ in found] == sorted({hour for hour, _ in found})


# ---- BASE ------------------------------------------------------------------------------------


def test_base_draws_what_it_would_have_drawn_for_the_same_requests_where_it_would_have() -> None:
    """BASE's energy is on the nodes that BASE would have used, at their intensity and PUE."""
    accountant = Accountant(SITES.get)
    accountant.rate(RATES)
    accountant.book("b", gpu_report(0.0))
    accountant.book(
        "b", {"GPU-a": EnergyCounters(1.0, START_S, 30.0, 5.0, {"m": ModelEnergy(20.0, 0.0, 10)})}
    )

    entries = {(key.node, key.model): each for key, each in accountant.page().entries.items()}

    assert {key: each.base_energy_j for key, each in entries.items()} == {
        ("b", ""): 10.0,  # idle and unattributed energy are no plan's doing
        ("b", "m"): 0.0,
        ("a", "m"): 60.0,
        ("c", "m"): 20.0,
    }
    assert entries["c", "m"].base_carbon_gco2e == pytest.approx(20.0 * 1.2 / 3.6e6 * 50.0)


def test_requests_answered_before_base_is_known_are_compared_once_it_is() -> None:
    """Requests wait for the rates, and are spread once, however often rates come."""
    accountant = Accountant(SITES.get)
    accountant.book("b", gpu_report(0.0))
    accountant.book(
        "b", {"GPU-a": EnergyCounters(1.0, START_S, 20.0, 0.0, {"m": ModelEnergy(20.0, 0.0, 10)})}
    )
    before = booked(accountant)
    accountant.rate(RATES)
    accountant.rate(RATES)

    assert (before.base_energy_j, booked(accountant).base_energy_j) == (0.0, 80.0)


def saved(
    energy_j: float, method: str, sites: dict[str, Site], rates: BaselineRates = RATES
) -> Figures:
    """Ten requests on node b, for which BASE draws 60 J on node a and 20 J on node c."""
    accountant = Accountant(sites.get)
    accountant.rate(rates)
    accountant.book("b", gpu_report(0.0))
    used = {"m": ModelEnergy(energy_j, 0.0, 10)}
    counters = EnergyCounters(1.0, START_S, energy_j, 0.0, used, method)
    accountant.book("b", {"GPU-a": counters})
    return booked(accountant)


def off(rates: BaselineRates, error: float) -> BaselineRates:
    """Energy that BASE draws where the profiles err by a share."""
    return {
        model: tuple(replace(rate, energy_j=rate.energy_j * (1 + error)) for rate in each)
        for model, each in rates.items()
    }


def difference(figures: Figures) -> float:
    return figures.base_carbon_gco2e - figures.carbon_gco2e


def test_a_meter_that_reads_too_much_makes_what_was_saved_look_smaller() -> None:
    """The meter's error is the change of what was saved where it errs by its half-width."""
    found, high = saved(20.0, "counter", SITES), saved(20.0 * 1.05, "counter", SITES)

    assert found.meter_error_gco2e == pytest.approx(difference(high) - difference(found))
    assert found.meter_error_gco2e < 0


@pytest.mark.parametrize("method", ["counter", "model"])
def test_the_profiles_error_is_what_saved_changes_by_where_they_err(method: str) -> None:
    """They make what BASE draws, and what ran as well where no meter did."""
    ran_j = 20.0 * 1.1 if method == "model" else 20.0
    found, high = saved(20.0, method, SITES), saved(ran_j, method, SITES, off(RATES, 0.1))

    assert found.profile_error_gco2e == pytest.approx(difference(high) - difference(found))
    assert found.profile_error_gco2e > 0


@pytest.mark.parametrize("node", ["a", "b", "c"])
def test_the_intensitys_error_is_what_saved_changes_by_where_it_errs(node: str) -> None:
    """Where work ran, more carbon was spent; where BASE would have run it, more was saved."""
    site = replace(SITES[node], intensity_error=0.34)
    high = replace(site, intensity_gco2e_per_kwh=site.intensity_gco2e_per_kwh * 1.34)
    found = saved(20.0, "counter", {**SITES, node: site})
    changed = difference(saved(20.0, "counter", {**SITES, node: high})) - difference(found)

    assert found.intensity_error_gco2e == pytest.approx(changed)
    assert (found.intensity_error_gco2e < 0) == (node == "b")


def test_what_was_saved_is_as_uncertain_as_profiles_meters_and_intensities_are() -> None:
    """BASE is modelled by profiles, what ran is metered; both emit at their node's intensity."""
    held = replace(SITES["b"], intensity_error=0.34)
    found = saved(20.0, "counter", {**SITES, "b": held})

    assert found.profile_error_gco2e == pytest.approx(0.1 * found.base_carbon_gco2e)
    assert found.meter_error_gco2e == pytest.approx(-0.05 * found.carbon_gco2e)
    assert found.intensity_error_gco2e == pytest.approx(-0.34 * found.carbon_gco2e)


def test_where_the_profiles_made_both_their_error_touches_the_difference_only() -> None:
    """Nothing was metered, so the meter cannot err."""
    found = saved(20.0, "model", SITES)

    assert found.meter_error_gco2e == found.intensity_error_gco2e == 0
    assert found.profile_error_gco2e == pytest.approx(0.1 * difference(found))


def answered(accountant: Accountant, requests: int) -> None:
    """Node b answers requests, by its counters since its start."""
    used = {"m": ModelEnergy(2.0 * requests, 0.0, requests)}
    counters = EnergyCounters(1.0, START_S, 2.0 * requests, 0.0, used)
    accountant.book("b", {"GPU-a": counters})


def test_requests_are_compared_with_base_as_it_was_when_they_were_answered() -> None:
    """Rates that change concern later requests; those of earlier ones are booked before."""
    accountant = Accountant(SITES.get)
    accountant.rate(RATES)
    answered(accountant, 0)
    answered(accountant, 10)
    accountant.rate(off(RATES, 1.0))
    answered(accountant, 15)

    assert booked(accountant).base_energy_j == pytest.approx(10 * 8.0 + 5 * 16.0)


def test_each_page_has_what_the_page_before_has_not() -> None:
    """Energy, BASE's energy and tokens are on one page; each page has the next number."""
    accountant, now = Accountant(SITES.get), datetime.fromtimestamp(START_S, UTC)
    accountant.rate(RATES)
    accountant.count("r", {"m": Tokens(0, 0)}, now)
    found = []
    for requests in (0, 10, 10, 15):
        answered(accountant, requests)
        accountant.count("r", {"m": Tokens(requests, 0)}, now)
        page = accountant.page()
        total = sum(page.entries.values(), Figures())
        found.append((page.account.page, total.energy_j, total.base_energy_j, total.input_tokens))
        assert page.account.gpus == accountant.account.gpus
        assert page.account.gpus is not accountant.account.gpus, "the page is of that moment"

    assert found == [(1, 0.0, 0.0, 0), (2, 20.0, 80.0, 10), (3, 0.0, 0.0, 0), (4, 10.0, 40.0, 5)]


def test_after_a_page_that_could_not_be_written_nothing_is_left_of_what_came_later() -> None:
    """Entries, requests to spread, those without rates and time left all come again."""
    accountant = Accountant(SITES.get)
    answered(accountant, 0)
    written = accountant.page().account
    answered(accountant, 10)
    accountant.rewind(written)
    accountant.rate(RATES)
    answered(accountant, 15)
    accountant.page()
    accountant.rewind(written)
    answered(accountant, 20)
    page = accountant.page()
    total = sum(page.entries.values(), Figures())

    assert (page.account.page, total.energy_j, total.requests) == (3, 40.0, 20)
    assert total.base_energy_j == pytest.approx(20 * 8.0)


@given(st.floats(0, 1e6), st.sampled_from(["counter", "integrated", "rapl", "model", ""]))
def test_where_nothing_is_claimed_there_is_nothing_to_be_wrong_about(
    energy_j: float, method: str
) -> None:
    """Where BASE has no place for a model, every error of what was saved is 0."""
    accountant = Accountant({"b": replace(SITES["b"], intensity_error=0.34)}.get)
    accountant.rate({})
    accountant.book("b", gpu_report(0.0))
    used = {"m": ModelEnergy(energy_j, 0.0, 10)}
    accountant.book("b", {"GPU-a": EnergyCounters(1.0, START_S, energy_j, 0.0, used, method)})
    found = booked(accountant)

    assert found.base_carbon_gco2e == found.carbon_gco2e
    errors = (found.profile_error_gco2e, found.meter_error_gco2e, found.intensity_error_gco2e)
    assert errors == (0.0, 0.0, 0.0)


def test_where_base_has_no_place_for_a_model_nothing_is_claimed_to_be_saved() -> None:
    """BASE is taken to draw what was drawn."""
    accountant = Accountant(SITES.get)
    accountant.rate({})
    accountant.book("b", gpu_report(0.0))
    accountant.book(
        "b", {"GPU-a": EnergyCounters(1.0, START_S, 20.0, 0.0, {"m": ModelEnergy(20.0, 0.0, 10)})}
    )

    found = booked(accountant)

    assert found.base_energy_j == found.energy_j == 20.0
    assert found.base_carbon_gco2e == found.carbon_gco2e


# ---- tokens ----------------------------------------------------------------------------------


def test_tokens_are_counted_from_a_routers_first_report_on_and_once() -> None:
    """The first report of a router is where its count begins; a lower count adds nothing."""
    accountant, now = Accountant(SITES.get), datetime.fromtimestamp(START_S, UTC)
    for router, tokens in (("r", 5), ("r", 9), ("r", 9), ("s", 100), ("s", 101), ("r", 10)):
        accountant.count(router, {"m": Tokens(tokens, 2 * tokens)}, now)

    found = booked(accountant)

    assert (found.input_tokens, found.output_tokens) == (6, 12)


def test_tokens_are_booked_by_hour_and_model_and_are_of_no_place() -> None:
    """A model that a router begins to serve counts from 0; a count that fell adds nothing."""
    accountant, now = Accountant(SITES.get), datetime(2026, 3, 1, 11, 59, tzinfo=UTC)
    accountant.count("r", {"m": Tokens(5, 7)}, now)
    accountant.count("r", {"m": Tokens(4, 9), "n": Tokens(3, 2, cached=1)}, now)

    hour = datetime(2026, 3, 1, 11, tzinfo=UTC)
    assert accountant.page().entries == {
        EntryKey(hour, "", "", "m"): Figures(input_tokens=0, output_tokens=2),
        EntryKey(hour, "", "", "n"): Figures(
            input_tokens=3, output_tokens=2, cached_input_tokens=1
        ),
    }


def test_the_256_routers_that_reported_last_are_known() -> None:
    """Routers come and go under new names: the one that was silent longest is forgotten."""
    account = Account()
    for name in range(257):
        account, _ = account.count(str(name), {"m": Tokens(1, 1)})
    account, again = account.count("1", {"m": Tokens(2, 2)})
    account, _ = account.count("new", {"m": Tokens(1, 1)})

    assert again == {"m": Tokens(1, 1)}
    assert list(account.routers) == [*map(str, range(3, 257)), "1", "new"]


@given(st.lists(st.floats(-5 * 3600.0, 5 * 3600.0), min_size=3, max_size=20))
def test_a_wall_clock_that_jumps_changes_no_sum_of_energy(jumps_s: list[float]) -> None:
    """Hours forward and back, between any two reports: entries sum to what the meter counted."""
    accountant = Accountant(SITES.get)
    entries = Figures()
    for number, jump_s in enumerate(jumps_s):
        now_s, total_j = 10.0 * number, 1000.0 + 500.0 * number
        reported = gpu_report(total_j, at_s=START_S + now_s + jump_s, since_s=START_S - 100.0)
        believed, _ = accountant.bounded("a", reported, now_s)
        accountant.book("a", believed)
        entries += booked(accountant)

    drawn_j = accountant.account.gpus["GPU-a"].total_j - 1000.0
    assert entries.energy_j == pytest.approx(drawn_j)
    assert drawn_j == pytest.approx(500.0 * (len(jumps_s) - 1))
