"""The instances of one model: who may take work now, and how much they get done."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from services.kit.config import InstanceChoice
from services.router.core.balancing.instance_choice import (
    CHOICES,
    Choose,
    least_expected_completion,
)
from services.router.core.balancing.weigher import WEIGHING, Grid, InstanceWeigher, UnknownCarbon
from services.router.core.instance_state import InstanceState
from services.router.core.model import Instance, InstanceId, Request

_RATE_AGE = 0.01  # of the objective: how old an estimate may be


class Capacity(NamedTuple):
    """What a model's instances get done.

    Attributes:
        rate_rps: Requests per second; 0: nothing is known.
        likely_s: By when an instance can be counted on to answer what it is given.
        soonest_s: How soon any of them may be hoped to.
    """

    rate_rps: float
    likely_s: float
    soonest_s: float


class InstancePool:
    """Lanes by identity.

    Attributes:
        states: All of them, those that leave and still hold something included.
        eligible: Those that may be given requests.
        weigher: Decides, where the choice may let requests wait; None: whoever is free takes one.
        closed: Variants that take nothing: the next stage of their pipeline could not go on.
    """

    def __init__(
        self,
        choice: InstanceChoice,
        choices: Mapping[InstanceChoice, Choose] = CHOICES,
        grid: Grid | None = None,
    ) -> None:
        self.states: dict[InstanceId, InstanceState] = {}
        self.eligible: tuple[InstanceState, ...] = ()
        self.closed: frozenset[str] = frozenset()
        self._choices = choices
        self._choose = choices.get(choice, least_expected_completion)
        self._grid = grid or UnknownCarbon()
        self._weighers: dict[InstanceChoice, InstanceWeigher] = {}
        self.weigher: InstanceWeigher | None = None
        self._ticks = count(1)
        self._capacity = Capacity(0.0, 0.0, 0.0)
        self._rated_s = -math.inf

    @property
    def slots(self) -> int:
        """Requests that those may hold together."""
        return sum(state.credits for state in self.eligible)

    def keep(self, instances: Iterable[Instance]) -> tuple[InstanceState, ...]:
        """Mark the lanes whose instances are no more wanted; return them."""
        wanted = {instance.id for instance in instances}
        for key, state in self.states.items():
            state.leaving = key not in wanted
        return tuple(state for state in self.states.values() if state.leaving)

    def add(self, instances: Iterable[Instance]) -> tuple[Instance, ...]:
        """Take up what instances are by now; return those that are new."""
        new = []
        for instance in instances:
            state = self.states.get(instance.id)
            if state is None:
                self.states[instance.id] = InstanceState(instance)
                new.append(instance)
            else:
                state.instance = instance
        return tuple(new)

    def refresh(
        self, choice: InstanceChoice, *, overloaded: bool, intensity_threshold: float = 1.0
    ) -> None:
        """Find out who may take work now, and how to choose among them.

        Instances without a share serve only where the plan's own are all gone, or where the model
        is under pressure: then whoever answers soonest goes first, so cheaper variants take more
        than their share. Accuracy is shed before requests. Where the choice weighs instances, it
        decides how much each gets, and the plan only which variants serve.
        """
        working = [
            state
            for state in self.states.values()
            if state.takes_work and state.instance.variant not in self.closed
        ]
        self.eligible = tuple(working if overloaded else _planned(working, choice) or working)
        plain = None if overloaded else self._choices.get(choice)
        self._choose = plain or least_expected_completion
        weighs = working and not overloaded
        self.weigher = self._weigher(choice, intensity_threshold) if weighs else None
        self._rated_s = -math.inf

    def free(
        self, besides: InstanceId | None = None, *, unsuspected: bool = False
    ) -> InstanceState | None:
        """Return who takes the next request; None: nobody has a credit.

        Args:
            besides: Not this one.
            unsuspected: Only who holds no request that another worker died with.
        """
        states = [state for state in self.eligible if len(state.in_flight) < state.credits]
        if besides is not None:
            states = [state for state in states if state.instance.id != besides]
        if unsuspected:
            states = [state for state in states if not state.suspected]
        return self._choose(states) if states else None

    def _weigher(
        self, choice: InstanceChoice, intensity_threshold: float
    ) -> InstanceWeigher | None:
        make = WEIGHING.get(choice)
        if make is None:
            return None
        policy = make(intensity_threshold)
        if choice not in self._weighers:
            self._weighers = {choice: InstanceWeigher(policy, self._grid)}
        self._weighers[choice].policy = policy  # what it has learned stays
        return self._weighers[choice]

    def touch(self, state: InstanceState) -> None:
        """Note that something happened to a lane."""
        state.used_at = next(self._ticks)

    def learn(self, state: InstanceState, request: Request, hold_s: float, energy_j: float) -> None:
        """Take in what a request took and cost, where a policy wants to know."""
        if self.weigher is not None and request.hedge is None:
            self.weigher.learn(state, request, hold_s, energy_j)

    def give(self, state: InstanceState, request: Request) -> None:
        """Let a lane hold a request."""
        state.in_flight[request.number] = request
        request.place = len(state.in_flight)
        request.attempts += 1
        state.used_at = next(self._ticks)

    def capacity(self, now_s: float, slo_latency_s: float) -> Capacity:
        """Return what all get done together while all their credits are used.

        By Little's law a lane's rate is its requests in flight over the time that each is. Lanes
        of which nothing is known count as the mean of the others.
        """
        if not 0 <= now_s - self._rated_s <= _RATE_AGE * slo_latency_s:
            self._capacity, self._rated_s = _capacity(self.eligible, slo_latency_s), now_s
        return self._capacity


def _planned(states: Sequence[InstanceState], choice: InstanceChoice) -> list[InstanceState]:
    """Return the lanes that the plan wants to serve."""
    shared = [state for state in states if state.instance.share > 0]
    if choice not in WEIGHING:
        return shared
    variants = {state.instance.variant for state in shared}
    return [state for state in states if state.instance.variant in variants]


def _capacity(states: Sequence[InstanceState], slo_latency_s: float) -> Capacity:
    known = [state for state in states if state.latency.hold_s]
    if not known:
        return Capacity(0.0, 0.0, 0.0)
    unknown = sum(state.credits for state in states) / sum(state.credits for state in known)
    likely_s = [state.latency.likely_s for state in known]
    return Capacity(
        rate_rps=unknown * sum(state.credits / state.latency.hold_s for state in known),
        # Lanes that are never in time must not keep everybody from waiting for the others.
        likely_s=max((s for s in likely_s if s < slo_latency_s), default=min(likely_s)),
        soonest_s=min(state.latency.soonest_s for state in known),
    )
