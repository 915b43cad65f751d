"""Model of leadership, terms and ownership: every state that two planners reach within its bounds.

Transitions call the product's own cores (`Lease`, `Tenure`, `Vigil`, `Terms`); what surrounds them
is restated in a few lines each: the database with its lock, a network that delays and loses, an
agent, a planner that dies or stands still at any moment. Time passes in ticks of a second and only
between transitions, so that a planner that stands still is one that others overtake.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from services.gpuagent.core.terms import Terms
from services.kit.errors import ServiceError
from services.planner.core.lease import Lease

NODES: Final = ("n0", "n1")
"""Two nodes of which both say that they have the one GPU."""


@dataclass(frozen=True, slots=True)
class Planner:
    """A planner's memory.

    Attributes:
        name: Its process.
        lease: As it wrote it last; None: it stands by.
        requested_s: Start of its last stored renewal, s.
        renewing_s: Start of a renewal under way, s; None: there is none.
        seen: The lease that it saw last while standing by.
        seen_s: When it saw that first, s.
        ended: The process that had the lock before, and has ended; "": not known.
        overtaken: The lease that it found expired; None: none.
        found: The lease that it may follow, as it saw it when it had the lock; None: none.
        owner: The node that it takes the GPU to be of; "": none has reported it.
    """

    name: str
    lease: Lease | None = None
    requested_s: float = 0
    renewing_s: float | None = None
    seen: Lease | None = None
    seen_s: float = 0
    ended: str = ""
    overtaken: Lease | None = None
    found: Lease | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """An order on its way. Attributes: term, node."""

    term: int
    node: str


@dataclass(frozen=True, slots=True)
class State:
    """Everything that there is.

    Attributes:
        now_s: Time, s.
        planners: Both of them.
        lock: Who has the database's lock; None: neither.
        note: The process that had it last, as the lock says; "": a new lock.
        stored: The lease in the database.
        plan: Term of the planner that wrote the newest plan.
        owner: The GPU's node in the database.
        steps: Orders on their way, in no order.
        known: Highest term that each node's agent knows.
        done: Term of the last order that each agent has carried out.
        used: Nodes on which the GPU was used.
        deaths: Planners that may still die.
    """

    now_s: float = 0
    planners: tuple[Planner, ...] = (Planner("p0"), Planner("p1"))
    lock: int | None = None
    note: str = ""
    stored: Lease = field(default_factory=Lease)
    plan: int = 0
    owner: str = ""
    steps: frozenset[Step] = frozenset()
    known: tuple[int, ...] = (0, 0)
    done: tuple[int, ...] = (0, 0)
    used: frozenset[str] = frozenset()
    deaths: int = 1

    def with_planner(self, index: int, planner: Planner) -> State:
        """Return the state with another memory of one planner."""
        planners = tuple(
            planner if each == index else kept for each, kept in enumerate(self.planners)
        )
        return replace(self, planners=planners)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The protocol, and ways to break it.

    Attributes:
        until_s: Time at which a history ends, s.
        orders: Whether agents are part of it.
        sessions: Whether a lock can go without its planner's death, as PostgreSQL's does with a
            connection; SQLite's lock file goes with the process only.
        acts_s, expires_s: `ACTS_S` and `EXPIRES_S`, shortened.
        fenced_store: Whether each write of the database checks the lease first.
        fenced_agents: Whether agents refuse orders of lower terms.
        owners_first: Whether a GPU's node is stored before orders go there.
        proven_end: Whether a free lock counts only where its last holder has the lease, too.
        nodes: Those that say that they have the GPU.
    """

    until_s: float = 5
    orders: bool = False
    sessions: bool = False
    acts_s: float = 2
    expires_s: float = 3
    fenced_store: bool = True
    fenced_agents: bool = True
    owners_first: bool = True
    proven_end: bool = True
    nodes: tuple[str, ...] = NODES

    def acts(self, planner: Planner, now_s: float) -> bool:
        """Return whether a planner may act."""
        return planner.lease is not None and now_s < planner.requested_s + self.acts_s

    def next(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield what can happen next, with what it leads to."""
        if state.now_s < self.until_s:
            yield "tick", replace(state, now_s=state.now_s + 1)
        for index, planner in enumerate(state.planners):
            moves = self._leads if planner.lease else self._stands_by
            for what, after in moves(state, index, planner):
                yield f"planner {index} {what}", after
            if state.deaths:
                lock = None if state.lock == index else state.lock
                dead = replace(state, lock=lock, deaths=state.deaths - 1)
                born = Planner(f"p{index}.{state.deaths}")
                yield f"planner {index} dies", dead.with_planner(index, born)
            if self.sessions and state.lock == index:
                yield f"planner {index}'s session ends", replace(state, lock=None)
        for step in state.steps:
            without = replace(state, steps=state.steps - {step})
            yield f"{step} arrives", self._arrives(without, step)

    def _stands_by(self, state: State, index: int, planner: Planner) -> Iterator[tuple[str, State]]:
        if planner.found is not None:
            yield from self._claims(state, index, planner, planner.found)
            return
        if state.lock is None:
            takes = replace(state, lock=index, note=planner.name)
            yield "takes the lock", takes.with_planner(index, replace(planner, ended=state.note))
        mine = state.lock == index
        ended = state.stored.holder in {"", planner.ended} or not self.proven_end
        if mine and (ended or planner.overtaken == state.stored):
            yield "may lead", state.with_planner(index, replace(planner, found=state.stored))
        elif planner.seen != state.stored:
            looks = replace(planner, seen=state.stored, seen_s=state.now_s)
            yield "looks", state.with_planner(index, looks)
        elif state.now_s - planner.seen_s >= self.expires_s:
            overtakes = state.with_planner(index, replace(planner, overtaken=state.stored))
            if mine:
                yield "waits no longer", overtakes
            else:
                yield "breaks the lock", replace(overtakes, lock=None, note="")

    def _claims(
        self, state: State, index: int, planner: Planner, found: Lease
    ) -> Iterator[tuple[str, State]]:
        """Yield the claim, in a transaction of its own: the lock may be another's by then."""
        if found == state.stored:
            taken = found.taken(planner.name)
            leads = Planner(planner.name, taken, state.now_s, owner=state.owner)
            yield "claims the lease", replace(state, stored=taken).with_planner(index, leads)
        else:
            again = replace(planner, found=None)
            yield "finds another lease", state.with_planner(index, again)

    def _leads(self, state: State, index: int, planner: Planner) -> Iterator[tuple[str, State]]:
        mine = planner.lease
        assert mine is not None
        deposed = self.fenced_store and not state.stored.same(mine)
        if planner.renewing_s is None:
            if planner.requested_s < state.now_s:
                begun = replace(planner, renewing_s=state.now_s)
                yield "begins to renew", state.with_planner(index, begun)
        elif deposed:
            lock = None if state.lock == index else state.lock
            again = Planner(f"{planner.name}'"[:6])
            yield "is deposed", replace(state, lock=lock).with_planner(index, again)
        else:
            renewed = mine.renewed()
            after = replace(planner, lease=renewed, requested_s=planner.renewing_s, renewing_s=None)
            yield "has renewed", replace(state, stored=renewed).with_planner(index, after)
            yield "fails to renew", state.with_planner(index, replace(planner, renewing_s=None))
        if not deposed and state.plan != mine.term:
            yield "writes a plan", replace(state, plan=mine.term)
        if self.orders:
            yield from self._orders(state, index, planner, mine, deposed=deposed)

    def _orders(
        self, state: State, index: int, planner: Planner, mine: Lease, *, deposed: bool
    ) -> Iterator[tuple[str, State]]:
        for node in self.nodes:
            if not planner.owner:
                yield (
                    f"hears of the GPU on {node}",
                    state.with_planner(index, replace(planner, owner=node)),
                )
        if planner.owner and not deposed and not state.owner:
            yield "stores its node", replace(state, owner=planner.owner)
        stored = state.owner == planner.owner or not self.owners_first
        step = Step(mine.term, planner.owner)
        may_send = planner.owner and stored and self.acts(planner, state.now_s)
        if may_send and step not in state.steps:
            yield f"sends {step}", replace(state, steps=state.steps | {step})

    def _arrives(self, state: State, step: Step) -> State:
        at = self.nodes.index(step.node)
        agent = Terms(state.known[at])
        if self.fenced_agents:
            try:
                agent.admit(step.term)
            except ServiceError:
                return state
        known, done = list(state.known), list(state.done)
        known[at], done[at] = agent.term, step.term
        return replace(state, known=tuple(known), done=tuple(done), used=state.used | {step.node})


def one_acts(protocol: Rules, _before: State, state: State) -> bool:
    """Return whether at most one planner may act."""
    return sum(protocol.acts(each, state.now_s) for each in state.planners) <= 1


def terms_grow(_protocol: Rules, before: State, state: State) -> bool:
    """Return whether each new leader has a higher term than those before."""
    same = state.stored.holder == before.stored.holder
    return state.stored.term >= before.stored.term + (not same)


def plans_by_term(_protocol: Rules, before: State, state: State) -> bool:
    """Return whether no planner has overwritten the plan of one that led later."""
    return state.plan >= before.plan and state.plan <= max(state.stored.term, before.plan)


def steps_by_term(_protocol: Rules, before: State, state: State) -> bool:
    """Return whether no agent has carried out an order after one of a higher term."""
    return all(now >= was for now, was in zip(state.done, before.done, strict=True))


def one_owner(_protocol: Rules, _before: State, state: State) -> bool:
    """Return whether the GPU was used on one node only, as neither was forgotten."""
    return len(state.used) <= 1


Invariant = Callable[[Rules, State, State], bool]

INVARIANTS: Final[tuple[Invariant, ...]] = (
    one_acts,
    terms_grow,
    plans_by_term,
    steps_by_term,
    one_owner,
)


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a search. Attributes: states, broken ("" or the invariant's name), history."""

    states: int
    broken: str = ""
    history: tuple[str, ...] = ()


def search(protocol: Rules, invariants: tuple[Invariant, ...] = INVARIANTS) -> Found:
    """Visit every state, nearest first; return the shortest history that breaks an invariant."""
    came_from: dict[State, tuple[State | None, str]] = {State(): (None, "")}
    waiting = deque([State()])
    while waiting:
        state = waiting.popleft()
        for what, after in protocol.next(state):
            broken = next((each for each in invariants if not each(protocol, state, after)), None)
            if broken is not None:
                history = (*_history(came_from, state), what)
                return Found(len(came_from), broken.__name__, history)
            if after not in came_from:
                came_from[after] = (state, what)
                waiting.append(after)
    return Found(len(came_from))


def _history(came_from: dict[State, tuple[State | None, str]], state: State) -> tuple[str, ...]:
    steps: list[str] = []
    at: State | None = state
    while at is not None:
        at, what = came_from[at]
        steps.append(what)
    return tuple(reversed(steps[:-1]))
