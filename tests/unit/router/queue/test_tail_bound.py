"""Boosts in theory: known results, and a comparison with requests that are served."""

from collections.abc import Sequence
from dataclasses import replace
from math import exp, expm1
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.core.queue.tail_bound import ServiceTimes, Tail, waiting_share
from tests.support.examples import examples
from tests.support.router.ranked_servers import served

JOBS = 100_000

lengths_s = st.integers(1, 400).map(lambda tenths: tenths / 10)
counts = st.lists(st.integers(0, 50).map(float), min_size=6, max_size=6)
loads = st.floats(0.3, 0.99)


@st.composite
def works(draw: st.DrawFn) -> ServiceTimes:
    """Requests of any lengths, classified at random."""
    services_s = sorted(draw(st.lists(lengths_s, min_size=6, max_size=6, unique=True)))
    classes = st.lists(counts, min_size=1, max_size=4).filter(lambda each: any(map(any, each)))
    return ServiceTimes(services_s, draw(classes))


@st.composite
def distinguished(draw: st.DrawFn) -> ServiceTimes:
    """Requests whose classes determine their lengths."""
    services_s = sorted(draw(st.lists(lengths_s, min_size=3, max_size=3, unique=True)))
    seen = draw(st.lists(st.integers(1, 50).map(float), min_size=3, max_size=3))
    return ServiceTimes(
        services_s, [[seen[k] if k == of else 0.0 for k in range(3)] for of in range(3)]
    )


def test_the_decay_rate_is_the_known_one_where_lengths_are_exponential() -> None:
    """M/M/1: gamma is what can be served less what comes."""
    services_s = [0.01 * (each + 0.5) for each in range(3000)]
    work = ServiceTimes(services_s, [[exp(-service_s) for service_s in services_s]])

    assert work.mean_s == pytest.approx(1.0, rel=1e-3)
    assert work.decay_rate(0.8) == pytest.approx(0.2, rel=1e-2)


@examples(0.4)
@given(works(), loads)
def test_the_decay_rate_solves_its_equation(work: ServiceTimes, load: float) -> None:
    rate_rps = load / work.mean_s

    gamma = work.decay_rate(rate_rps)

    moment = sum(
        count * expm1(gamma * service_s)
        for count, service_s in zip(work.counts, work.services_s, strict=True)
    ) / sum(work.counts)
    assert gamma > 0
    assert rate_rps * moment == pytest.approx(gamma, rel=1e-6)


@examples(0.4)
@given(works(), st.floats(1e-3, 1.0))
def test_boosts_fall_with_length_down_to_none(work: ServiceTimes, theta: float) -> None:
    boosts_s = work.boosts_s(theta)

    assert boosts_s == sorted(boosts_s, reverse=True)
    assert boosts_s[-1] == 0.0


@examples(0.25)
@given(works(), loads)
def test_without_boosts_the_tail_is_that_of_first_come_first_served(
    work: ServiceTimes, load: float
) -> None:
    rate_rps = load / work.mean_s
    gamma = work.decay_rate(rate_rps)

    assert growth(work, gamma, rate_rps, [0.0] * len(work.classes)) == pytest.approx(1.0)


@examples(0.4)
@given(distinguished(), loads, st.floats(0.1, 5.0))
def test_no_boosts_make_a_lighter_tail_than_those_of_the_decay_rate(
    work: ServiceTimes, load: float, other: float
) -> None:
    """Theorem of Yu and Scully: neither larger nor smaller ones do, nor none."""
    rate_rps = load / work.mean_s
    gamma = work.decay_rate(rate_rps)

    least = growth(work, gamma, rate_rps, work.boosts_s(gamma))

    assert least <= growth(work, gamma, rate_rps, work.boosts_s(other * gamma)) * (1 + 1e-9)
    assert least <= 1 + 1e-9


@examples(0.4)
@given(works(), loads, st.integers(1, 16), st.floats(0.001, 0.1))
def test_the_limit_is_exceeded_by_as_many_as_requested(
    work: ServiceTimes, load: float, slots: int, share: float
) -> None:
    """Fewer exceed it where services of one length are more than that, and these at most."""
    work = replace(work, slots=slots)
    rate_rps = load / work.mean_s

    tail = Tail(work, work.decay_rate(rate_rps), rate_rps, share)

    longest = sum(
        count
        for count, service_s in zip(work.counts, work.services_s, strict=True)
        if service_s >= tail.limit_s - 1e-6
    ) / sum(work.counts)
    assert tail.share_in_turn <= share * (1 + 1e-6)
    assert tail.share_in_turn + longest >= share * (1 - 1e-6)


@given(st.integers(1, 64), st.floats(0.01, 0.99))
def test_more_slots_at_the_same_load_make_fewer_wait(slots: int, load: float) -> None:
    """One slot: as many as the load; and Erlang's own table for two at 0.5: a third."""
    assert waiting_share(1, load) == pytest.approx(load)
    assert waiting_share(2, 0.5) == pytest.approx(1 / 3)
    assert 0 <= waiting_share(slots + 1, load) <= waiting_share(slots, load)


@pytest.mark.parametrize(("slots", "load"), [(1, 0.7), (4, 0.85)])
@pytest.mark.parametrize("theta_over_gamma", [0.5, 1.0])
def test_the_tail_grows_by_as_much_as_is_foreseen(
    theta_over_gamma: float, slots: int, load: float
) -> None:
    """Of two lengths, within a quarter: how many take longer than one in a hundred does in turn."""
    lengths, shares = (1.0, 6.0), (0.85, 0.15)
    work = ServiceTimes(lengths, [[shares[0], 0.0], [0.0, shares[1]]], slots)
    rate_rps = load / work.mean_s
    gamma = work.decay_rate(rate_rps)
    boosts_s = work.boosts_s(theta_over_gamma * gamma)
    rng, now_s = Random(0), 0.0
    arrivals, classes = [], []
    for _ in range(JOBS):
        now_s += rng.expovariate(rate_rps)
        arrivals.append(now_s)
        classes.append(int(rng.random() < shares[1]))
    services = [lengths[each] for each in classes]

    in_turn = sorted(served(arrivals, services, lambda _: 0.0, slots=slots))
    boosted = served(arrivals, services, lambda job: boosts_s[classes[job]], slots=slots)

    beyond_s = in_turn[-JOBS // 100]
    found = sum(time_s > beyond_s for time_s in boosted) / (JOBS / 100)
    tail = Tail(work, gamma, rate_rps, 0.01)
    assert found == pytest.approx(tail.share_beyond(boosts_s) / tail.share_in_turn, rel=0.25)


def growth(work: ServiceTimes, gamma: float, rate_rps: float, boosts_s: Sequence[float]) -> float:
    """Return by how much boosts make the farthest tail grow."""
    tail = Tail(work, gamma, rate_rps, 1e-12)
    return tail.share_beyond(boosts_s) / tail.share_in_turn
