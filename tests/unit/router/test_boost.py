"""Boosts: what is guaranteed whatever was learned, and what they gain."""

from __future__ import annotations

from heapq import heappop, heappush
from random import Random
from statistics import fmean, quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.boost import CLASSES, Boosts

BOUND_S = 20.0
SERVICE_S = (0.5, 1.5, 4.0, 8.0, 12.0)

lessons = st.lists(st.tuples(st.integers(0, CLASSES - 1), st.floats(0, 1e5)), max_size=200)
loads = st.tuples(st.integers(0, 10**6), st.floats(1e-3, 1e6), st.integers(1, 64))


@given(lessons, st.lists(loads, min_size=1, max_size=5))
def test_every_boost_is_within_the_bound_and_none_is_above_a_shorter_classes(
    seen: list[tuple[int, float]], adaptations: list[tuple[int, float, int]]
) -> None:
    """Whatever was seen: so nobody is overtaken by who came more than the bound later."""
    boosts = Boosts(BOUND_S)
    for length_class, service_s in seen:
        boosts.learn(length_class, service_s)
    for arrivals, interval_s, slots in adaptations:
        boosts.adapt(arrivals, interval_s, slots)

    found = [boosts.of(each) for each in range(CLASSES)]
    assert all(0 <= boost <= BOUND_S for boost in found)
    assert found == sorted(found, reverse=True)


def test_without_a_prediction_and_before_anything_is_learned_there_is_no_boost() -> None:
    boosts = Boosts(1e9)
    assert {boosts.of(each) for each in (None, 0, 4)} == {0.0}

    taught(boosts)
    assert boosts.of(None) == 0.0
    assert boosts.of(0) > boosts.of(3) > 0


def test_the_fuller_the_service_the_farther_short_requests_may_go_ahead() -> None:
    half, full = (taught(Boosts(1e9), load) for load in (0.5, 0.95))

    assert full.of(0) > 2 * half.of(0)


def test_old_lengths_are_forgotten() -> None:
    """When all answers become ten times shorter, so do the boosts."""
    boosts = taught(Boosts(1e9))
    before_s = boosts.of(0)
    for _ in range(60):
        taught(boosts, shorter=10)

    assert boosts.of(0) == pytest.approx(before_s / 10, rel=0.2)


def test_the_mean_falls_and_the_tail_does_not_grow() -> None:
    """One server at 90 % load, classes told rightly in three of four cases; five seeds."""
    cuts, tails = [], []
    for seed in range(5):
        arrivals, classes, services = stream(Random(seed), load=0.9)
        first_come = served(arrivals, services, [0.0] * len(arrivals))
        boosts = Boosts(1e9)
        boosted = learning(arrivals, services, classes, boosts)
        cuts.append(1 - fmean(boosted) / fmean(first_come))
        tails.append(quantiles(boosted, n=100)[-1] / quantiles(first_come, n=100)[-1])

    assert fmean(cuts) > 0.15
    assert fmean(tails) <= 1.0


def taught(boosts: Boosts, load: float = 0.9, shorter: float = 1.0) -> Boosts:
    """Teach equally many of each class, then a load."""
    for length_class, service_s in enumerate(SERVICE_S):
        for _ in range(500):
            boosts.learn(length_class, service_s / shorter)
    boosts.adapt(10_000, 10_000 * fmean(SERVICE_S) / shorter / load, slots=1)
    return boosts


def stream(rng: Random, load: float) -> tuple[list[float], list[int], list[float]]:
    """Return arrivals (Poisson), predicted classes and service times."""
    now_s, arrivals, classes, services = 0.0, [], [], []
    for _ in range(6_000):
        now_s += rng.expovariate(load / fmean(SERVICE_S))
        true = rng.randrange(CLASSES)
        arrivals.append(now_s)
        services.append(SERVICE_S[true])
        classes.append(true if rng.random() < 0.75 else rng.randrange(CLASSES))
    return arrivals, classes, services


def learning(
    arrivals: list[float], services: list[float], classes: list[int], boosts: Boosts
) -> list[float]:
    """Serve in the order of boosts that are learned on the way."""
    ranks: list[float] = []
    for index, (arrival, length_class) in enumerate(zip(arrivals, classes, strict=True)):
        if index and index % 500 == 0:
            boosts.adapt(500, arrival - arrivals[index - 500], slots=1)
        boosts.learn(length_class, services[index])
        ranks.append(boosts.of(length_class))
    return served(arrivals, services, ranks)


def served(arrivals: list[float], services: list[float], boosts_s: list[float]) -> list[float]:
    """Return times in the system: one server, the least arrival less boost first."""
    waiting: list[tuple[float, int]] = []
    times = [0.0] * len(arrivals)
    now_s, coming = 0.0, 0
    for _ in arrivals:
        if not waiting:
            now_s = max(now_s, arrivals[coming])
        while coming < len(arrivals) and arrivals[coming] <= now_s:
            heappush(waiting, (arrivals[coming] - boosts_s[coming], coming))
            coming += 1
        index = heappop(waiting)[1]
        now_s += services[index]
        times[index] = now_s - arrivals[index]
    return times
