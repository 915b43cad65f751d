"""Histories as paths of the model of leadership: each must be one that the model allows.

`install` records what planners do with lock, lease, plans and owners of GPUs, in the order in which
it takes effect (a write: its commit), and the steps that planners send and agents admit. `left`
plays the record on the model: each event must be a transition that `Rules.next` offers, with the
same lease as its result, and no step of it may break an invariant of the model.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from services.gpuagent.supervision.journal import TermJournal
from services.kit import lock_file
from services.kit.errors import ServiceError
from services.planner.adapters import agent_sessions
from services.planner.adapters.store import leadership, store
from services.planner.core.lease import ACTS_S, EXPIRES_S, Lease
from tests.simulation import cluster as parts
from tests.simulation.cluster import LIAR, NODES, PLANNERS
from tests.simulation.leadership_model import INVARIANTS, Planner, Rules, State, Step
from tests.simulation.machine import Disk, Process, current, now_s, patch

_NO_LIMIT: Final = 10**9


@dataclass(frozen=True, slots=True)
class Event:
    """An event. Attributes: at_s, what; planner: index, or the node; pid; value: what it is of."""

    at_s: float
    what: str
    who: str
    pid: int = 0
    value: Any = None


events: Final[list[Event]] = []
"""Record of this history."""


class Left(Exception):
    """An event is no transition of the model."""


def left(record: Iterable[Event]) -> str:
    """Return the first event that no path of the model has; "": there is none."""
    found = tuple(record)
    for node in NODES:
        path = Path(node)
        for event in found:
            try:
                path.follow(event)
            except Left as error:
                return f"the model of leadership has no such step: {event} ({error})"
    return ""


class Path:
    """The model's state along a history, of the GPUs of one node, which a liar may claim."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._rules = Rules(
            orders=True,
            until_s=_NO_LIMIT,
            acts_s=ACTS_S,
            expires_s=EXPIRES_S,
            nodes=(node, LIAR),
        )
        self._state = State(deaths=_NO_LIMIT)
        self._sent: Counter[Step] = Counter()

    def follow(self, event: Event) -> None:
        """Take the transitions of an event.

        Raises:
            Left: The model has none.
        """
        self._state = replace(self._state, now_s=max(event.at_s, self._state.now_s))
        if event.what in {"admits", "refuses"}:
            self._arrives(event)
        else:
            _EVENTS[event.what](self, event, PLANNERS.index(event.who))

    def _take(self, *whats: str) -> None:
        """Take one transition after another."""
        for what in whats:
            before = self._state
            after = next((after for each, after in self._rules.next(before) if each == what), None)
            if after is None:
                raise Left(f"{what}: not in {before}")
            for holds in INVARIANTS:
                if not holds(self._rules, before, after):
                    raise Left(f"{what}: breaks {holds.__name__} in {before}")
            self._state = after

    def _offers(self, what: str) -> bool:
        return any(each == what for each, _ in self._rules.next(self._state))

    def _set(self, index: int, **values: Any) -> None:
        planner = replace(self._state.planners[index], **values)
        self._state = self._state.with_planner(index, planner)

    # ---- events of planners

    def ends(self, event: Event, index: int) -> None:
        """A process begins, ends, or lets go of the lock: its memory is gone."""
        self._take(f"planner {index} dies")
        name = f"{socket.gethostname()}:{event.pid}"
        self._state = self._state.with_planner(index, Planner(name))

    def locks(self, _event: Event, index: int) -> None:
        """A planner takes the lock."""
        self._take(f"planner {index} takes the lock")

    def breaks(self, _event: Event, index: int) -> None:
        """A planner breaks the lock of one that stands still."""
        self._take(f"planner {index} breaks the lock")

    def looks(self, event: Event, index: int) -> None:
        """A planner reads the lease while it does not lead."""
        planner, state = self._state.planners[index], self._state
        if planner.found is not None and planner.found != state.stored:
            self._take(f"planner {index} finds another lease")
            planner = self._state.planners[index]
        if planner.lease is None and event.value == self._state.stored != planner.seen:
            self._set(index, seen=event.value, seen_s=event.at_s)

    def may_lead(self, event: Event, index: int) -> None:
        """A planner has the lock, and the lease that it found is its to follow."""
        planner = self._state.planners[index]
        if planner.lease is None and event.value == self._state.stored != planner.found:
            what = f"planner {index} waits no longer"
            if self._offers(what):
                self._take(what)
            self._take(f"planner {index} may lead")

    def begins(self, _event: Event, index: int) -> None:
        """A leader begins to renew its lease; a renewal before may be under way yet."""
        what = f"planner {index} begins to renew"
        if self._state.planners[index].lease is not None and self._offers(what):
            self._take(what)

    def fails(self, _event: Event, index: int) -> None:
        """A leader could not renew its lease."""
        what = f"planner {index} fails to renew"
        if self._offers(what):
            self._take(what)

    def leases(self, event: Event, index: int) -> None:
        """A lease was stored: that of a new leader, or a renewed one."""
        if self._state.planners[index].lease is None:
            self._take(f"planner {index} claims the lease")
        else:
            self.begins(event, index)
            self._take(f"planner {index} has renewed")
        if self._state.stored != event.value:
            raise Left(f"stored is {event.value}, should be {self._state.stored}")

    def deposed(self, event: Event, index: int) -> None:
        """A planner hears that another leads."""
        if self._state.planners[index].lease is not None:
            self.begins(event, index)
            self._take(f"planner {index} is deposed")
            self._set(index, name=f"{socket.gethostname()}:{event.pid}")

    def plans(self, _event: Event, index: int) -> None:
        """A plan was stored."""
        lease = self._state.planners[index].lease
        if lease is None or lease.term != self._state.plan:
            self._take(f"planner {index} writes a plan")
        elif not lease.same(self._state.stored):
            raise Left(f"a plan of {lease}, but {self._state.stored} is stored")

    def owns(self, event: Event, index: int) -> None:
        """The nodes of GPUs were stored."""
        owner = next((node for node, of in event.value if of == self._node), "")
        if owner and owner != self._state.owner:
            self._hears(index, owner)
            self._take(f"planner {index} stores its node")

    def sends(self, event: Event, index: int) -> None:
        """A planner sends a step."""
        step: Step = event.value
        if step.node not in self._rules.nodes:
            return
        self._hears(index, step.node)
        if step not in self._state.steps:
            self._take(f"planner {index} sends {step}")
        elif not self._rules.acts(self._state.planners[index], self._state.now_s):
            raise Left(f"sends {step}: its lease has expired in {self._state}")
        self._sent[step] += 1

    def _hears(self, index: int, node: str) -> None:
        if not self._state.planners[index].owner:
            self._take(f"planner {index} hears of the GPU on {node}")

    def _arrives(self, event: Event) -> None:
        step = Step(event.value, event.who)
        if event.who not in self._rules.nodes:
            return
        known = self._state.known[self._rules.nodes.index(event.who)]
        if (step.term >= known) != (event.what == "admits"):
            raise Left(f"a step of term {step.term} where term {known} is known")
        if step in self._state.steps:
            self._take(f"{step} arrives")
            self._sent[step] -= 1
            if self._sent[step] > 0:  # others of its term are on their way
                self._state = replace(self._state, steps=self._state.steps | {step})


_EVENTS: Final[dict[str, Callable[[Path, Event, int], None]]] = {
    "ends": Path.ends,
    "locks": Path.locks,
    "breaks": Path.breaks,
    "looks": Path.looks,
    "may lead": Path.may_lead,
    "begins": Path.begins,
    "fails": Path.fails,
    "leases": Path.leases,
    "deposed": Path.deposed,
    "plans": Path.plans,
    "owns": Path.owns,
    "sends": Path.sends,
}


def _began(process: Process) -> None:
    """Record the beginning of a planner's process, and its end."""
    if process.name in PLANNERS:
        _note("ends", process)
        process.on_death.append(lambda: _note("ends", process))


def _note(what: str, process: Process, value: Any = None) -> None:
    if process.name in PLANNERS:
        events.append(Event(now_s(), what, process.name, process.pid, value))


def _named(lease: Lease) -> Lease:
    """Return a lease whose holder is a process, as locks know it."""
    return replace(lease, holder=lease.holder.rpartition("-")[0])


def install() -> None:
    """Record what planners and agents do."""
    parts.on_start.append(_began)
    _record_locks()
    _record_leases()
    _record_writes()
    _record_steps()


def _record_locks() -> None:
    kind = lock_file.LockFile
    take, leave, broken = kind.take, kind.__exit__, kind.break_open

    def taken(self: Any) -> bool:
        before, held = self._descriptor, take(self)
        if held and self._descriptor != before:
            _note("locks", current.get())
        return held

    def left_open(self: Any, *error: Any) -> None:
        leave(self, *error)
        if current.get().alive:
            _note("ends", current.get())

    def broke(self: Any) -> None:
        broken(self)
        _note("breaks", current.get())

    patch(kind, take=taken, __exit__=left_open, break_open=broke)


def _record_leases() -> None:
    kind = leadership.Leadership
    stored, take, deposed, renew = kind._stored, kind.take, kind._deposed, store.Store.renew

    async def looked(self: Any, connection: Any) -> Lease:
        lease = await stored(self, connection)
        _note("looks", current.get(), _named(lease))
        return lease

    async def waited(self: Any, *args: Any) -> None:
        await take(self, *args)
        _note("may lead", current.get(), _named(self._found))

    def said(self: Any, lease: Lease) -> Any:
        _note("deposed", current.get())
        return deposed(self, lease)

    async def renewed(self: Any, at_least: int = 0) -> None:
        _note("begins", current.get())
        try:
            await renew(self, at_least)
        except ServiceError:
            _note("fails", current.get())
            raise

    patch(kind, _stored=looked, take=waited, _deposed=said)
    patch(store.Store, renew=renewed)


def _record_writes() -> None:
    write, put = leadership._write, store.Stored.put

    async def wrote(connection: Any, lease: Lease) -> None:
        await write(connection, lease)
        _pending().append(("leases", _named(lease)))

    async def placed(self: Any, connection: Any, value: Any) -> None:
        await put(self, connection, value)
        if self._key == "gpus":
            _pending().append(("plans", None))
        elif self._key == "gpu_owners":
            names = dict.fromkeys(value.values())
            owners = tuple((each, parts.shown.get(each, each)) for each in names)
            _pending().append(("owns", owners))

    def ended(method: str) -> None:
        writes, process = _pending(), current.get()
        if method == "commit":
            for what, value in writes:
                _note(what, process, value)
        writes.clear()

    patch(leadership, _write=wrote)
    patch(store.Stored, put=placed)
    patch(Disk, ended=staticmethod(ended))


def _pending() -> list[Any]:
    found: list[Any] = current.get().facts.setdefault("writes", [])
    return found


def _record_steps() -> None:
    send = agent_sessions.AgentSession.send

    def sent(self: Any, step: Any) -> Any:
        result = send(self, step)
        _note("sends", current.get(), Step(step.term, self.node))
        return result

    admit = TermJournal.admit

    async def admitted(self: Any, term: int) -> None:
        place, at_s, node = len(events), now_s(), current.get().name
        what = "refuses"
        try:
            await admit(self, term)
            what = "admits"
        finally:  # it is decided at once, and written then
            events.insert(place, Event(at_s, what, node, value=term))

    patch(agent_sessions.AgentSession, send=sent)
    patch(TermJournal, admit=admitted)
