"""Boosts: what is guaranteed whatever was learned, and what they gain."""

from collections.abc import Sequence
from itertools import count
from math import inf
from random import Random
from statistics import fmean, quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.core.queue.boost import DECILES, Boosts
from services.router.core.queue.tail_bound import ServiceTimes, Tail
from tests.support.examples import examples
from tests.support.router.ranked_servers import served

BOUND_S = 20.0
SERVICE_S = (0.5, 1.5, 4.0, 8.0, 12.0)
MEAN_S = fmean(SERVICE_S)
SQUARE_S2 = fmean(service_s**2 for service_s in SERVICE_S)
SEEDS = range(5)

durations = st.floats(0, 1e5)
lessons = st.lists(st.tuples(st.integers(0, DECILES - 1), durations, durations), max_size=200)
times = st.integers(0, 400).map(lambda tenths: tenths / 10)
jobs = st.lists(st.tuples(times, times, times), min_size=1, max_size=40)


@given(lessons, st.integers(1, 64))
def test_every_boost_is_within_the_bound_and_none_is_above_a_shorter_classes(
    seen: list[tuple[int, float, float]], slots: int
) -> None:
    """No request is overtaken by one that came later by more than the bound."""
    boosts = Boosts(BOUND_S)
    for length_decile, service_s, wait_s in seen:
        boosts.learn(length_decile, service_s, wait_s)
    boosts.adapt(slots)

    found = [boosts.of(each) for each in range(DECILES)]
    assert all(0 <= boost <= BOUND_S for boost in found)
    assert found == sorted(found, reverse=True)


def test_without_a_prediction_and_before_anything_is_learned_there_is_no_boost() -> None:
    boosts = Boosts(1e9)
    assert {boosts.of(each) for each in (None, 0, 4)} == {0.0}

    taught(boosts)
    assert boosts.of(None) == 0.0
    assert boosts.of(0) > boosts.of(3) > 0


def test_the_longer_requests_wait_the_farther_short_ones_may_go_ahead() -> None:
    half, full = (taught(Boosts(1e9), load) for load in (0.5, 0.95))

    assert full.of(0) > 2 * half.of(0)


def test_a_few_long_waits_are_not_taken_for_the_rule() -> None:
    """Sixty that waited long count as ones that did so by chance."""
    few, many = (taught(Boosts(1e9), load=0.95, each=each) for each in (12, 1000))

    assert few.of(0) < 0.75 * many.of(0)


@pytest.mark.parametrize("load", [0.35, 0.5])
def test_the_tail_is_not_foreseen_to_grow(load: float) -> None:
    """Where hardly anybody waits, long answers are the tail: little may go ahead of them."""
    lengths_s, seen = (2.0, 10.0), ((90, 10), (10, 90))
    work = ServiceTimes(lengths_s, seen)
    rate_rps = load / work.mean_s
    boosts = Boosts(1e9)
    for length_decile, counts in enumerate(seen):
        for service_s, times_seen in zip(lengths_s, counts, strict=True):
            for _ in range(10 * times_seen):
                wait_s = work.square_s2 / (2 * work.mean_s * (1 - load))
                boosts.learn(length_decile, service_s, wait_s)
    boosts.adapt(slots=1)

    found_s = [boosts.of(length_decile) for length_decile in range(2)]
    tail = Tail(work, work.decay_rate(rate_rps), rate_rps, 0.01)
    assert tail.share_beyond(found_s) < 1.01 * tail.share_in_turn
    assert found_s[0] > 1.0


def test_a_small_bound_keeps_the_proportions() -> None:
    """Classes still differ where the bound is far below their unbounded boosts."""
    free, bounded = taught(Boosts(1e9)), taught(Boosts(1.0))

    assert bounded.of(0) == pytest.approx(1.0)
    assert bounded.of(2) == pytest.approx(free.of(2) / free.of(0))


def test_old_lengths_are_forgotten() -> None:
    """When all answers and waits become ten times shorter, so do the boosts."""
    boosts = taught(Boosts(1e9))
    before_s = boosts.of(0)
    for _ in range(60):
        taught(boosts, shorter=10)

    assert boosts.of(0) == pytest.approx(before_s / 10, rel=0.2)


@examples(0.4)
@given(jobs)
def test_no_order_changes_the_sum_of_waits_times_services(
    made: list[tuple[float, float, float]],
) -> None:
    """The law by which waits in any order give the queue's length (Kleinrock, 1965)."""
    made.sort()
    arrivals, services, ranks = ([float(job[column]) for job in made] for column in range(3))

    def weighed(boosts_s: Sequence[float]) -> float:
        times_s = served(arrivals, services, boosts_s.__getitem__)
        return sum(
            service_s * (time_s - service_s)
            for time_s, service_s in zip(times_s, services, strict=True)
        )

    assert weighed(ranks) == pytest.approx(weighed([0.0] * len(made)))


@pytest.mark.parametrize("peak_s", [inf, 500.0])
def test_the_mean_falls_and_the_tail_does_not_grow(peak_s: float) -> None:
    """One server, three of four classes right: at 90 % load, and in peaks of it."""
    cuts, tails = [], []
    for seed in SEEDS:
        arrivals, classes, services = stream(Random(seed), load=0.9, peak_s=peak_s)
        first_come = served(arrivals, services, lambda _: 0.0)
        boosted = learning(arrivals, services, classes)
        cuts.append(1 - fmean(boosted) / fmean(first_come))
        tails.append(quantiles(boosted, n=100)[-1] / quantiles(first_come, n=100)[-1])

    assert fmean(cuts) > 0.15
    assert fmean(tails) <= 1.0


@pytest.mark.parametrize("slots", [2, 4])
def test_the_tail_does_not_grow_with_several_slots(slots: int) -> None:
    """At 70 % load long answers are the tail, and hardly anything may go ahead of them."""
    tails = []
    for seed in SEEDS:
        arrivals, classes, services = stream(Random(seed), load=0.7 * slots, peak_s=inf)
        first_come = served(arrivals, services, lambda _: 0.0, slots=slots)
        boosted = learning(arrivals, services, classes, slots)
        tails.append(quantiles(boosted, n=100)[-1] / quantiles(first_come, n=100)[-1])

    assert fmean(tails) < 1.005


def taught(boosts: Boosts, load: float = 0.9, shorter: float = 1.0, each: int = 500) -> Boosts:
    """Teach equally many of each class, and how long requests wait at a load."""
    wait_s = SQUARE_S2 / (2 * MEAN_S * (1 - load))
    for _ in range(each):
        for length_decile, service_s in enumerate(SERVICE_S):
            boosts.learn(length_decile, service_s / shorter, wait_s / shorter)
    boosts.adapt(slots=1)
    return boosts


def stream(rng: Random, load: float, peak_s: float) -> tuple[list[float], list[int], list[float]]:
    """Return arrivals (Poisson, in peaks with an idle time after each), their classes, services."""
    now_s, arrivals, classes, services = 0.0, [], [], []
    for _ in range(6_000):
        now_s += rng.expovariate(load / MEAN_S)
        true = rng.randrange(len(SERVICE_S))
        arrivals.append(now_s + (2 * peak_s * (now_s // peak_s) if peak_s < inf else 0.0))
        services.append(SERVICE_S[true])
        classes.append(true if rng.random() < 0.75 else rng.randrange(len(SERVICE_S)))
    return arrivals, classes, services


def learning(
    arrivals: Sequence[float], services: Sequence[float], classes: Sequence[int], slots: int = 1
) -> list[float]:
    """Serve in the order of boosts that are learned on the way."""
    boosts = Boosts(1e9)
    ends = count(1)

    def ended(index: int, wait_s: float) -> None:
        boosts.learn(classes[index], services[index], wait_s)
        if next(ends) % 100 == 0:
            boosts.adapt(slots)

    return served(arrivals, services, lambda index: boosts.of(classes[index]), ended, slots)
