"""The instances of one model: eligibility, choice, and capacity."""

import math
from collections.abc import Iterable, Sequence
from itertools import count
from typing import NamedTuple, TypeVar

from services.kit.config import InstanceChoice
from services.kit.errors import ServiceError
from services.kit.request_cost import Cost
from services.router.core.balancing.answer_carbon import AnswerCarbon
from services.router.core.balancing.instance_choice import (
    CHOICES,
    by_prefix,
    by_shares,
    consolidated,
    least_expected_completion,
)
from services.router.core.balancing.kinds import Kinds
from services.router.core.balancing.weigher import (
    WEIGHING,
    CarbonSignal,
    InstanceWeigher,
    UnknownCarbon,
    kind_of,
)
from services.router.core.deferrable.headroom import Objective
from services.router.core.deferrable.marginal_energy import MarginalEnergy
from services.router.core.dispatch.silence import Silence, likeliest
from services.router.core.instance_state import InstanceState
from services.router.core.model import Instance, InstanceId
from services.router.core.pending_request import PendingRequest
from services.router.core.token_times import Held, TokenObjective

_RATE_AGE = 0.01  # of the objective: maximum age of an estimate
_ANY = TokenObjective(math.inf, math.inf)
_MIN_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0  # after a refusal, s
_States = TypeVar("_States", list[InstanceState], tuple[InstanceState, ...])


class Capacity(NamedTuple):
    """Estimated capacity of a model's instances.

    Attributes:
        rate_rps: Requests per second; 0: not known.
        likely_s: Conservative time from assignment to answer.
        soonest_s: Optimistic time from assignment to answer, of the fastest instance.
    """

    rate_rps: float
    likely_s: float
    soonest_s: float


class InstancePool:
    """The states of one model's instances.

    Attributes:
        states: By identity, those included that leave and still hold requests.
        eligible: Those that may be given requests.
        weigher: Decides where the instance choice may let requests wait; None: any free instance
            takes the next request.
        by_prefix: Whether the choice of an instance depends on the prompt's beginning.
        closed: Variants that take no requests: the next stage of their pipeline could not go on.
        silence: Instances that have fallen silent: others go before them.
        fills: Deferrable requests have come: how interactive ones do beside them is learned.
        goal: Objectives that interactive requests keep beside deferrable ones.
        ticks: Numbers for the events of instances, in order (`InstanceState.used_at`).
    """

    def __init__(self, choice: InstanceChoice, carbon: CarbonSignal | None = None) -> None:
        self.states: dict[InstanceId, InstanceState] = {}
        self.eligible: tuple[InstanceState, ...] = ()
        self._working: tuple[InstanceState, ...] = ()
        self._accuracies: tuple[float, ...] = ()
        self.closed: frozenset[str] = frozenset()
        self.weigher: InstanceWeigher | None = None
        self.fills = False
        self.goal = Objective(math.inf)
        self.by_prefix = choice == "prefix"
        self._tokens: TokenObjective | None = None
        self._kv_bounded = False
        self._counts = False
        self._choose = CHOICES.get(choice, least_expected_completion)
        self._kinds = Kinds()
        self._carbon = carbon or UnknownCarbon()
        self._answer_carbon = AnswerCarbon()
        self._marginal = MarginalEnergy()
        self._weighers: dict[InstanceChoice, InstanceWeigher] = {}
        self.silence = Silence()
        self.ticks = count(1)
        self._capacity = Capacity(0.0, 0.0, 0.0)
        self._estimated_s = -math.inf
        self._refuses_until_s = 0.0  # the last of them

    @property
    def by_prompt(self) -> bool:
        """True if the choice of an instance depends on the request's prompt."""
        return self.by_prefix or self._tokens is not None or self._kv_bounded

    @property
    def slots(self) -> int:
        """Requests that the eligible instances may hold together."""
        return sum(state.most for state in self.eligible)

    def mark_leaving(self, wanted: Iterable[Instance]) -> tuple[InstanceState, ...]:
        """Mark the instances that have left the routing table, and return them."""
        ids = {instance.id for instance in wanted}
        for key, state in self.states.items():
            state.leaving = key not in ids
        return tuple(state for state in self.states.values() if state.leaving)

    def add(self, instances: Iterable[Instance]) -> tuple[Instance, ...]:
        """Take over the newest values of instances; return those that are new."""
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
        self,
        choice: InstanceChoice,
        *,
        overloaded: bool,
        intensity_threshold: float = 1.0,
        tokens: TokenObjective = _ANY,
    ) -> None:
        """Determine which instances may take requests, and how to choose among them.

        Instances without a share serve only where none of the plan's own is left, or while the
        model is overloaded, or for a request that requires their accuracy: then the instance that
        answers soonest goes first, so cheaper variants
        take more than their share. Accuracy is shed before requests. Where the choice weighs
        instances, it decides how much each gets, and the plan only which variants serve.
        """
        self._working = working = tuple(
            state
            for state in self.states.values()
            if state.takes_requests and state.instance.variant not in self.closed
        )
        self._accuracies = tuple(sorted({state.instance.accuracy for state in working}))
        self.eligible = working if overloaded else _planned(working, choice) or working
        self._kv_bounded = any(state.kv_tokens_per_credit for state in working)
        plain = None if overloaded else CHOICES.get(choice)
        self._choose = plain or least_expected_completion
        self.by_prefix = choice == "prefix" and not overloaded
        promised = choice == "consolidated" and not overloaded and tokens.token_s < math.inf
        self._tokens = tokens if promised else None
        weighs = working and not overloaded
        self.weigher = self._weigher(choice, intensity_threshold) if weighs else None
        self._estimated_s = -math.inf
        self._kinds.arrange(self.eligible if self._choose is by_shares else ())
        self._count_held()

    def free(
        self,
        pending: PendingRequest,
        now_s: float,
        *,
        hedge: bool = False,
        silent_since_s: float = math.inf,
    ) -> InstanceState | None:
        """Return the instance that takes a request; None: none has room.

        Where none has a credit left, one that runs batches takes it for its next batch, so that no
        time passes between full batches. By shares, as the plan's latency model has it, kinds take
        turns, and those of a kind that run batches do so where none is idle: were those with more
        credits left preferred, requests would come just after a batch began, and wait longest. A
        request that a worker died with goes to none that holds another such one, and one
        that an instance refused never to that instance again. One that has just refused gets
        requests only where no other is free, a silent one only where all are silent.

        Args:
            pending: The request: it may require an accuracy, and the choice may depend on it.
            now_s: The time.
            hedge: Other instances hold it; credits alone count then.
            silent_since_s: Since when those have been silent, which makes others likelier.
        """
        states = self._candidates(pending, in_turn=not hedge)
        in_turn = self._choose is by_shares and not hedge
        free = [  # in turn: that would not wait for a running batch
            state
            for state in states
            if len(state.in_flight) < state.credits
            and not (in_turn and state.in_batches and state.in_flight)
        ]
        if not (free or hedge):
            free = [state for state in states if len(state.in_flight) < state.most]
        if self._kv_bounded:
            free = [state for state in free if state.has_tokens_for(pending)]
        if silent_since_s < math.inf:
            holders = [self.states[each] for each in pending.holding]
            free = list(likeliest(free, holders, silent_since_s))
        if len(free) < 2:
            return free[0] if free else None
        if self.silence.since_s:
            free = list(self.silence.without_suspects(free))
        free = self.calm(free, now_s)
        if self.by_prefix and pending.prefix():
            return by_prefix(free, pending)
        if self._tokens is not None:
            price = self._answer_carbon.price(free, self._carbon)
            return consolidated(free, pending, self._tokens, price)
        return self._choose(free)

    def _candidates(self, pending: PendingRequest, *, in_turn: bool) -> Sequence[InstanceState]:
        """Return the instances that may take a request, with room or without.

        Args:
            pending: The request.
            in_turn: Kinds of instances take turns.
        """
        states: Sequence[InstanceState] = self.eligible
        if pending.refusals or pending.request.accuracy_floor:
            states = _suitable(self.eligible, pending) or _suitable(self._working, pending)
        elif self._kinds.kinds and in_turn and not (pending.deaths or self.silence.since_s):
            states = self._kinds.next()
        if self.silence.since_s:
            states = self.silence.others(states)
        if pending.attempts:  # one that it was withdrawn from still has it
            number = pending.request.number
            states = [state for state in states if number not in state.in_flight]
        if pending.deaths:
            states = [state for state in states if not state.holds_suspect]
        return states

    def left_for(self, pending: PendingRequest) -> bool:
        """Return whether an instance is there that a returned request may still be given to."""
        return bool(_suitable(self._working, pending))

    def calm(self, states: _States, now_s: float) -> _States:
        """Return those of the instances that are not full and refused nothing; none: all."""
        if now_s >= self._refuses_until_s:
            return states
        return (
            type(states)(
                each
                for each in states
                if now_s >= each.refuses_until_s and now_s >= each.full_until_s
            )
            or states
        )

    def note_load(self, state: InstanceState, others: int, full_until_s: float) -> None:
        """Note what an instance's server says of itself: others' requests, and a long queue."""
        state.others, state.full_until_s = others, full_until_s
        self._refuses_until_s = max(self._refuses_until_s, full_until_s)

    def refuse(
        self, state: InstanceState, pending: PendingRequest, error: ServiceError, now_s: float
    ) -> None:
        """Note that an instance would not answer a request: others go first for a while.

        So it is for all whose requests go to the same server: it is full for all of them.
        """
        pause_s = min(max(error.retry_after_s or 0.0, _MIN_PAUSE_S), _MAX_PAUSE_S)
        self._refuses_until_s = max(self._refuses_until_s, now_s + pause_s)
        for each in self.states.values():
            if each is state or (state.server and each.server == state.server):
                pending.refuse(each.instance.id, error)
                each.refuses_until_s = now_s + pause_s

    def least_accuracy(self, floor: float) -> float:
        """Return the lowest accuracy of an instance that is at least `floor`; infinite: none is.

        Requests for which it is the same may go to the same instances.
        """
        return next((each for each in self._accuracies if each >= floor), math.inf)

    def hold(
        self, state: InstanceState, pending: PendingRequest, now_s: float, *, hedge: bool = False
    ) -> None:
        """Assign a request to an instance; a hedge: to a second instance."""
        if self._tokens is not None:
            held = state.with_one_more(pending.request.prompt_bytes)
            pending.queue_behind(held.prompt_bytes)
        state.hold(pending, counted=self._counts)
        if self.by_prefix:
            state.prefixes.add(pending.prefix())
        state.used_at = next(self.ticks)
        if self.fills:
            state.headroom.peak.hold(state.interactive, now_s)
        pending.assign(
            state.instance.id,
            len(state.in_flight) + state.others,
            now_s,
            beside=state.deferrable,
            hedge=hedge,
        )

    def learn(
        self, state: InstanceState, pending: PendingRequest, now_s: float, cost: Cost | None
    ) -> None:
        """Update the estimates with an answer's time, energy and tokens."""
        state.answered += 1
        state.refuses_until_s = 0.0
        hold_s = now_s - pending.assigned_s
        if pending.request.deferrable:
            self._learn_deferrable(state, pending, hold_s, cost)
            return
        if self.fills:
            self._learn_headroom(state, pending, now_s, cost)
        if cost is not None and cost.usage is not None and cost.output_tokens:
            state.learn_length(cost.output_tokens)
            answers = (pending.load + len(state.in_flight) + 1) / 2  # as it came, and as it ends
            waited_s = pending.assigned_s - pending.request.arrived_s
            first_s = cost.usage.first_token_s
            state.token_times.add(
                Held(answers, pending.prompt_bytes),
                first_s - waited_s if first_s else math.nan,
                cost.usage.token_s,
            )
            self._answer_carbon.learn(state.instance, answers, cost)
        if pending.hedge is None:
            state.latency.observe(hold_s, pending.load - pending.beside)
            if self.weigher is not None:
                energy_j = 0.0 if cost is None else cost.energy_j
                self.weigher.learn(state, pending.request, hold_s, energy_j)

    def learn_part(self, state: InstanceState, pending: PendingRequest, now_s: float) -> None:
        """Update an instance's headroom with the newest part of an interactive answer."""
        if pending.responses > 1:
            state.headroom.observe_gap(pending.response_gap_s)
        else:
            state.headroom.observe_first(now_s - pending.request.arrived_s, self.goal)

    def _learn_headroom(
        self, state: InstanceState, pending: PendingRequest, now_s: float, cost: Cost | None
    ) -> None:
        """Update an instance's headroom with an interactive answer, once anything uses it."""
        load = _load(state, pending)
        latency_s = now_s - pending.request.arrived_s
        state.headroom.peak.hold(state.interactive, now_s)
        state.headroom.observe(cost, load, latency_s, self.goal)
        if cost is not None:
            self._marginal.learn(kind_of(state.instance), cost, load)

    def _learn_deferrable(
        self, state: InstanceState, pending: PendingRequest, hold_s: float, cost: Cost | None
    ) -> None:
        """Update the estimates of deferrable answers, none of those of interactive ones."""
        load = _load(state, pending)
        state.headroom.observe_own(cost, load, hold_s)
        if cost is not None:
            kind = kind_of(state.instance)
            self._marginal.learn(kind, cost, load)
            pending.price(self._marginal.of(kind, cost, load))

    def capacity(self, now_s: float, slo_latency_s: float) -> Capacity:
        """Return the capacity of all instances together while they hold all that they may.

        By Little's law an instance's rate is its requests in flight over the time that each is
        held. Instances without an estimate count as the mean of the others.
        """
        if not 0 <= now_s - self._estimated_s <= _RATE_AGE * slo_latency_s:
            self._capacity, self._estimated_s = _capacity(self.eligible, slo_latency_s), now_s
        return self._capacity

    def _count_held(self) -> None:
        """Keep sums of the requests that instances hold, from the first choice by prompt."""
        if self.by_prompt and not self._counts:
            self._counts = True
            for state in self.states.values():
                for pending in state.in_flight.values():
                    state.work.add(pending)

    def _weigher(
        self, choice: InstanceChoice, intensity_threshold: float
    ) -> InstanceWeigher | None:
        make = WEIGHING.get(choice)
        if make is None:
            return None
        policy = make(intensity_threshold)
        if choice not in self._weighers:
            self._weighers = {choice: InstanceWeigher(policy, self._carbon)}
        self._weighers[choice].policy = policy  # its estimates stay
        return self._weighers[choice]


def _load(state: InstanceState, pending: PendingRequest) -> float:
    """Return how many an instance held meanwhile: as the request came, and as it ends."""
    return (pending.load + len(state.in_flight) + 1) / 2


def _planned(states: Sequence[InstanceState], choice: InstanceChoice) -> tuple[InstanceState, ...]:
    """Return the instances that the plan gives requests."""
    shared = tuple(state for state in states if state.instance.share > 0)
    if choice not in WEIGHING:
        return shared
    variants = {state.instance.variant for state in shared}
    return tuple(state for state in states if state.instance.variant in variants)


def _suitable(
    states: Sequence[InstanceState], pending: PendingRequest
) -> tuple[InstanceState, ...]:
    """Return the instances with a request's accuracy that have not refused it."""
    floor, refusals = pending.request.accuracy_floor, pending.refusals or ()
    return tuple(
        state
        for state in states
        if state.instance.accuracy >= floor and state.instance.id not in refusals
    )


def _capacity(states: Sequence[InstanceState], slo_latency_s: float) -> Capacity:
    known = [state for state in states if state.latency.hold_s]
    if not known:
        return Capacity(0.0, 0.0, 0.0)
    unknown = sum(state.most for state in states) / sum(state.most for state in known)
    likely_s = [state.latency.likely_s for state in known]
    return Capacity(
        rate_rps=unknown * sum(state.most / state.latency.hold_s for state in known),
        # Instances that are never in time must not keep requests from waiting for the others.
        likely_s=max((s for s in likely_s if s < slo_latency_s), default=min(likely_s)),
        soonest_s=min(state.latency.soonest_s for state in known),
    )
