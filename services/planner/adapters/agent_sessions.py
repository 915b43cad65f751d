"""Open streams of agents, which send reports and results and receive steps."""

import asyncio
import math
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from cinquefoil.gpuagent.v1 import inventory_pb2, steps_pb2
from cinquefoil.planner.v1 import planner_pb2
from services.kit.errors import (
    AlreadyExists,
    DeadlineExceeded,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    ServiceError,
    Unavailable,
    from_status,
)
from services.kit.power_limits import MOST_OVER_LIMIT
from services.kit.rpc import Caller
from services.kit.segment import plain
from services.kit.telemetry import logs
from services.planner.adapters.wire.convert_energy import check_energy, counters_from
from services.planner.adapters.wire.convert_node import check_drifts, node_from
from services.planner.core.accounting import counters as energy
from services.planner.core.cycle.cluster_state import ClusterState
from services.planner.core.online_search.measurement import NO_COUNTS, SegmentCounters

_log = logs.get("agents")

_MOST_JOINS: Final = 10
_JOINS_WINDOW_S: Final = 10.0
_LONGEST_DIGEST: Final = 64

_BOOKED_PER_S: Final = 25.0
_BOOKED_AT_ONCE: Final = 50
"""Nodes whose energy is booked per second, and together; large fleets are booked in turns."""

_SILENT_S: Final = 2.0
"""Silence of an agent, which reports its meters twice a second, after which it may be lost, s."""

_SAID_SILENT_S: Final = 2.5
"""Silence of an agent after which a condition names its node, s."""

_REGULAR_REPORTS: Final = 10
"""Reports of meters after which an agent is known to send them regularly."""

_MISSED_REPORTS: Final = 4
"""Usual intervals between an agent's reports after which it counts as silent."""

_STEP_SILENT_S: Final = 6.0
"""Silence of an agent that has a step to perform, after which its node is lost, s."""

_LOOK_S: Final = 0.5

_SAME_SHARE: Final = 0.005
"""Relative change of a power share that is not sent."""

_Unbooked = dict[str, tuple[inventory_pb2.GpuEnergy, datetime]]
"""Latest accounts of a node's GPUs by UUID, and their arrival times."""

RecordEnergy = Callable[[str, Mapping[str, energy.EnergyCounters]], None]
"""Takes a node's name and the energy counters of its GPUs, by UUID."""


class AgentSession:
    """One agent's stream, from its first report until either side ends it."""

    def __init__(self, node: str, owner: str, now_s: float) -> None:
        """Open the stream of a node's agent.

        Args:
            node: Name of the node.
            owner: Identity of the agent, or its host where identities are not checked.
            now_s: Time of its first message, monotonic, s.
        """
        self.node = node
        self.owner = owner
        self.heard_s = now_s
        self.shared_w = math.inf
        self.metered = 0
        self._interval_s = math.inf  # usual, between messages
        self._responses: asyncio.Queue[planner_pb2.JoinResponse | None] = asyncio.Queue()
        self._pending: dict[str, asyncio.Future[steps_pb2.StepResult]] = {}
        self._error: ServiceError | None = None
        self._closed = False

    def send(self, step: steps_pb2.Step) -> asyncio.Future[steps_pb2.StepResult]:
        """Send a step; return its result, which fails if the stream ends first.

        Raises:
            Unavailable: The stream has ended.
        """
        if self._closed:
            raise Unavailable(f"the agent of node {self.node} is away")
        result: asyncio.Future[steps_pb2.StepResult] = asyncio.get_running_loop().create_future()
        self._pending[step.step_id] = result
        result.add_done_callback(lambda _: self._pending.pop(step.step_id, None))
        self._responses.put_nowait(planner_pb2.JoinResponse(step=step))
        return result

    def hear(self, now_s: float) -> None:
        """Note the time of a message, monotonic, s."""
        interval_s, self.heard_s = now_s - self.heard_s, now_s
        known = math.isfinite(self._interval_s)
        self._interval_s = (self._interval_s + interval_s) / 2 if known else interval_s

    def silent(self, now_s: float, least_s: float = _SILENT_S) -> bool:
        """Return whether nothing has come for at least a while, and much longer than usual."""
        return now_s - self.heard_s > max(least_s, _MISSED_REPORTS * self._interval_s)

    def left_s(self, now_s: float) -> float:
        """Return when the agent of an ended stream left: it may have been silent before."""
        return self.heard_s if self.silent(now_s) else now_s

    def resolve(self, result: steps_pb2.StepResult) -> None:
        """Deliver the result of a step; that of an older rollout's step is dropped."""
        waiting = self._pending.get(result.step_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(result)

    def close(self, error: ServiceError | None = None) -> None:
        """End the stream, with `error` if given; steps in flight fail."""
        if self._closed:
            return
        self._closed, self._error = True, error
        self._responses.put_nowait(None)
        for waiting in [*self._pending.values()]:
            if not waiting.done():
                waiting.set_exception(Unavailable(f"the agent of node {self.node} went away"))

    def release(self) -> None:
        """Notify a leaving agent that its segments have been moved as far as possible."""
        self._responses.put_nowait(planner_pb2.JoinResponse(released=True))

    def share_power(self, limit_w: float, setting: str) -> None:
        """Send the most power that the node's devices may draw, W; infinite: any."""
        shared_w, self.shared_w = self.shared_w, limit_w
        if limit_w == shared_w or abs(limit_w - shared_w) <= _SAME_SHARE * limit_w < math.inf:
            self.shared_w = shared_w
            return
        share = planner_pb2.PowerShare(setting=setting)
        if math.isfinite(limit_w):
            share.limit_w = limit_w
        self._responses.put_nowait(planner_pb2.JoinResponse(power_share=share))

    async def responses(self) -> AsyncIterator[planner_pb2.JoinResponse]:
        """Yield the responses to send until the stream is closed.

        Raises:
            ServiceError: The error that it was closed with.
        """
        while (response := await self._responses.get()) is not None:
            yield response
        if self._error is not None:
            raise self._error


@dataclass(frozen=True, slots=True)
class AgentReport:
    """The newest report of an agent, as received.

    Attributes:
        node: Hardware and segments of the node.
        energy: One energy account per GPU.
        drifts: Profiles that have drifted on this node.
        config_digest: Of the agent's deployment file; "": not known.
    """

    node: inventory_pb2.Node
    energy: tuple[inventory_pb2.GpuEnergy, ...] = ()
    drifts: tuple[planner_pb2.ProfileDrift, ...] = ()
    config_digest: str = ""


class AgentSessions:
    """Every agent's session and last report; feeds the fleet, the account and the online search."""

    def __init__(self, state: ClusterState, account: RecordEnergy) -> None:
        """Start without sessions.

        Args:
            state: Receives nodes' reports, and their segments' counters.
            account: Receives their energy.
        """
        self._state = state
        self._fleet = state.fleet
        self._account = account
        self._clock = state.clock
        self._nodes = state.fleet.settings
        self._joined_s: dict[str, deque[float]] = {}
        self._sessions: dict[str, AgentSession] = {}
        self._reports: dict[str, AgentReport] = {}
        self._unread: dict[str, tuple[Sequence[inventory_pb2.GpuEnergy], datetime]] = {}
        self._unbooked: dict[str, _Unbooked] = {}
        self._begun: set[str] = set()
        self._may_book, self._booked_s = float(_BOOKED_AT_ONCE), self._clock.monotonic()
        state.readings.collect = self._read_all
        state.silent = self._silent

    @property
    def reports(self) -> Mapping[str, AgentReport]:
        """The last report of every node that joined since the start."""
        self._read_all()
        return self._reports

    def devices_w(self) -> dict[str, float]:
        """Return the metered power of the devices of each connected node, W."""
        return {
            name: sum(each.power_w for each in report.energy)
            for name, report in self.reports.items()
            if self._state.fleet.connected(name)
        }

    def join(self, first: planner_pb2.JoinRequest, agent: Caller, host: str) -> AgentSession:
        """Open a session with the first request of a stream; the agent's older session ends.

        Args:
            first: First request of the stream.
            agent: The calling agent.
            host: Host that the call comes from.

        Raises:
            InvalidArgument: The request has no node, or an invalid one.
            FailedPrecondition: The node or its zone differs from the deployment file.
            PermissionDenied: The caller is another node's agent, or another agent has joined.
            ResourceExhausted: The node has joined too often in the last seconds.
        """
        if not first.HasField("node"):
            raise InvalidArgument.at("node", "required in the first request")
        now_s = self._clock.monotonic()
        session = AgentSession(first.node.name, agent.name or host, now_s)
        older = self._sessions.get(session.node)
        if self._nodes.in_file(session.node):  # admission has checked the others
            _check_identity(session, agent)
        _check_owner(session, older)
        self._check_rate(session.node)
        self._take_node(first.node)
        self._sessions[session.node] = session
        if older is not None:
            older.close(AlreadyExists(f"node {session.node} has joined again on another stream"))
        self._take_rest(session, first)
        _log.info("node joined", node=session.node, again=older is not None)
        return session

    def take(self, session: AgentSession, request: planner_pb2.JoinRequest) -> None:
        """Process a later request of a stream.

        Raises:
            InvalidArgument: It reports another node than the first.
        """
        if self._sessions.get(session.node) is not session:
            return  # a late message of a stream that was replaced
        session.hear(self._clock.monotonic())
        session.metered += bool(request.energy)
        if request.HasField("node"):
            if request.node.name != session.node:
                raise InvalidArgument.at(
                    "node.name", f"this stream is of {session.node}, not of {request.node.name!r}"
                )
            self._take_node(request.node)
        self._take_rest(session, request)

    def leave(self, session: AgentSession) -> None:
        """Remove a stream that ended; without effect once a newer one has replaced it."""
        session.close()
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]
            self._fleet.leave(session.node, session.left_s(self._clock.monotonic()))
            _log.info("node left", node=session.node)
            self._state.changed.notify()

    def give_up(self, unreachable: Collection[str]) -> None:
        """Give up the nodes whose workers no router reaches, and whose agents are silent.

        An agent that is heard again joins again, with all that runs there. Where agents speak,
        the workers are replaced after a while.

        Args:
            unreachable: Segments that no router reaches.
        """
        now_s = self._clock.monotonic()
        for node in self._fleet.unreachable(unreachable):
            session = self._sessions.get(node)
            if session is None or now_s - session.heard_s >= _SILENT_S:
                self._lose(node, "its agent is silent, and no router reaches it")
        serving = self._fleet.serving()
        replaceable = [each for each in serving if self._fleet.takes_over(each, now_s)]
        for node in self._state.unreached.observe(unreachable, serving, replaceable, now_s):
            why = "no router reaches workers that their agent reports as serving"
            _log.warning(why, node=node, segments=len(self._state.unreached.given_up))
            self._state.changed.notify()

    def _lose(self, node: str, why: str) -> None:
        """Plan without a node from now on. An agent that is heard again joins again."""
        session = self._sessions.pop(node, None)
        if session is not None:
            session.close(Unavailable(f"node {node} is lost: {why}"))
        self._fleet.lose(node, self._clock.monotonic())
        _log.warning(f"node lost: {why}", node=node)
        self._state.changed.notify()

    async def perform(self, node: str, step: steps_pb2.Step, timeout_s: float) -> None:
        """Send a step to a node and wait for its result.

        A node whose agent falls silent meanwhile is lost: its machine may be dead without an end
        of its stream, and the next plan does without it.

        Raises:
            Unavailable: The node is unreachable, or became so before it answered.
            DeadlineExceeded: It did not answer in `timeout_s`.
            ServiceError: The step failed; status and message are the agent's.
        """
        session = self._sessions.get(node)
        if session is None:
            raise Unavailable(f"the agent of node {node} is away")
        try:
            async with asyncio.timeout(timeout_s):
                result = await self._answer(session, step)
        except TimeoutError:
            raise DeadlineExceeded(f"node {node} did not answer in {timeout_s:g} s") from None
        if not result.ok:
            message = plain(result.message) or "the agent does not say why"
            raise from_status(result.status, message)

    async def _answer(self, session: AgentSession, step: steps_pb2.Step) -> steps_pb2.StepResult:
        """Return the result of a step, unless the agent falls silent."""
        result = session.send(step)
        try:
            while not result.done():
                if session.silent(self._clock.monotonic(), _STEP_SILENT_S):
                    self._lose(session.node, "its agent is silent while it has a step to perform")
                await asyncio.wait({result}, timeout=_LOOK_S)
            return await result
        finally:
            result.cancel()

    def book(self) -> None:
        """Book reported energy, of as many nodes as are due by now.

        Counters only grow: the last report of each GPU covers all earlier ones, and booking costs
        several times as much as receiving.
        """
        now_s = self._clock.monotonic()
        self._may_book += _BOOKED_PER_S * (now_s - self._booked_s)
        self._may_book, self._booked_s = min(self._may_book, _BOOKED_AT_ONCE), now_s
        for node in [*self._unbooked, *self._unread.keys() - self._unbooked.keys()]:
            if self._may_book < 1:
                break
            self._may_book -= 1
            self._book(node)

    def book_each(self) -> Iterator[None]:
        """Book all reported energy, one node at each step."""
        for node in {**self._unbooked, **self._unread}:
            self._book(node)
            yield

    def book_all(self) -> None:
        """Book all reported energy at once."""
        for _ in self.book_each():
            pass

    def _book(self, node: str) -> None:
        self._read(node)
        if waiting := self._unbooked.pop(node, None):
            self._account(node, counters_from(waiting.values(), self._state.level.aims))

    def forget(self, node: str) -> None:
        """Drop a node's reports, once they are booked."""
        self._unread.pop(node, None)
        self._unbooked.pop(node, None)
        if (report := self._reports.pop(node, None)) is not None:
            self._begun.difference_update(gpu.uuid for gpu in report.node.gpus)
        self._joined_s.pop(node, None)

    def power_w(self, node: str) -> float | None:
        """Return the power of a node's devices by its last report, W; None: it has not reported.

        No device can draw more than its board allows, whatever the report says.
        """
        energy, _ = self._unread.get(node, ((), None))
        report = self._reports.get(node)
        known = self._fleet.node(node)
        energy = energy or (report.energy if report else ())
        if not energy or known is None:
            return None
        limits_w = {gpu.uuid: MOST_OVER_LIMIT * gpu.type.metered_limit_w for gpu in known.gpus}
        return sum(
            min(max(each.power_w, 0.0), limits_w[each.gpu_uuid])
            for each in energy
            if each.gpu_uuid in limits_w and not math.isnan(each.power_w)
        )

    def share_power(self, node: str, limit_w: float, setting: str) -> None:
        """Send the most power that a node's devices may draw, where it has changed."""
        if (session := self._sessions.get(node)) is not None:
            session.share_power(limit_w, setting)

    def share_no_power(self, limited: Collection[str]) -> None:
        """End the shares of all nodes but these."""
        for name, session in self._sessions.items():
            if name not in limited:
                session.share_power(math.inf, "")

    def close(self) -> None:
        """End all streams: the service drains."""
        for session in self._sessions.values():
            session.close()

    def _silent(self) -> list[str]:
        now_s = self._clock.monotonic()
        return [
            node
            for node, each in self._sessions.items()
            if each.metered >= _REGULAR_REPORTS and each.silent(now_s, _SAID_SILENT_S)
        ]

    def _check_rate(self, node: str) -> None:
        """Refuse a node that joins repeatedly: each time routes and plans are recomputed."""
        if node not in self._nodes:
            return  # not the deployment's: refused below
        now_s = self._clock.monotonic()
        joined_s = self._joined_s.setdefault(node, deque(maxlen=_MOST_JOINS))
        if len(joined_s) == _MOST_JOINS and now_s - joined_s[0] < _JOINS_WINDOW_S:
            raise ResourceExhausted(
                f"node {node} has joined {_MOST_JOINS} times in {_JOINS_WINDOW_S:g} s",
                reason="JOINS_TOO_OFTEN",
                retry_after_s=_JOINS_WINDOW_S - (now_s - joined_s[0]),
            )
        joined_s.append(now_s)

    def _check_endpoints(self, message: inventory_pb2.Node) -> None:
        """Refuse workers outside the deployment file's host of the node."""
        node = self._nodes.get(message.name)
        host = None if node is None else node.worker_host
        for segment in message.segments:
            for endpoint in segment.endpoints:
                found = endpoint.rpartition(":")[0].strip("[]")
                if host is not None and found != host:
                    raise InvalidArgument.at(
                        "node.segments",
                        f"{segment.spec.segment_id} listens at {endpoint!r}, but "
                        f"nodes.{message.name}.worker_host is {host}",
                    )

    def _take_node(self, message: inventory_pb2.Node) -> None:
        self._check_endpoints(message)
        news = self._fleet.report(node_from(message), self._clock.monotonic())
        known = self._reports.get(message.name)
        self._reports[message.name] = (
            replace(known, node=message) if known else AgentReport(message)
        )
        if news:
            self._state.changed.notify()

    def _take_rest(self, session: AgentSession, request: planner_pb2.JoinRequest) -> None:
        if request.HasField("step_result"):
            session.resolve(request.step_result)
        if request.HasField("node"):
            self._note(session.node, config_digest=plain(request.config_digest[:_LONGEST_DIGEST]))
        if request.HasField("drifts"):
            check_drifts(request.drifts.drifts)
            self._note(session.node, drifts=tuple(request.drifts.drifts))
        if request.energy:
            self._take_energy(session.node, request.energy)

    def _take_energy(self, node: str, energy: Sequence[inventory_pb2.GpuEnergy]) -> None:
        """Store a report, to be processed at the next booking unless a later one covers it."""
        before = self._unread.get(node)
        if before is not None and not _goes_on(before[0], energy):
            self._read(node)
        self._unread[node] = energy, self._clock.now()
        if any(gpu.gpu_uuid not in self._begun for gpu in energy):
            self._read(node, raises=True)

    def _read_all(self) -> None:
        for node in list(self._unread):
            self._read(node)

    def _read(self, node: str, *, raises: bool = False) -> None:
        """Process a node's newest report; the stream of an invalid one is closed.

        Raises:
            InvalidArgument: It is invalid, and `raises`.
        """
        energy, at = self._unread.pop(node, ((), None))
        if at is None:
            return
        try:
            check_energy(energy)
        except InvalidArgument as error:
            if raises:
                raise
            if session := self._sessions.get(node):
                session.close(error)
            return
        known = self._fleet.node(node)
        own = {gpu.uuid: gpu.type.metered_limit_w for gpu in known.gpus} if known else {}
        for gpu in energy:
            most_w = MOST_OVER_LIMIT * own.get(gpu.gpu_uuid, 0.0)
            gpu.power_w = min(max(gpu.power_w, 0.0), most_w)
        self._reports[node] = replace(self._reports[node], energy=tuple(energy))
        energy = [gpu for gpu in energy if gpu.gpu_uuid in own]
        self._keep(node, energy, at)
        self._state.readings.metered(node, _counters(energy))

    def _keep(self, node: str, energy: Iterable[inventory_pb2.GpuEnergy], at: datetime) -> None:
        """Keep a report until it is booked; the first and last of an account are booked at once."""
        waiting = self._unbooked.setdefault(node, {})
        for gpu in energy:
            known = waiting.get(gpu.gpu_uuid)
            if known is not None and known[0].since != gpu.since:
                self._account(node, counters_from([known], self._state.level.aims))
                self._begun.discard(gpu.gpu_uuid)
            if gpu.gpu_uuid not in self._begun:
                self._account(node, counters_from([(gpu, at)], self._state.level.aims))
                self._begun.add(gpu.gpu_uuid)
            elif known is not None and gpu.total_j < known[0].total_j:
                continue  # a late report
            waiting[gpu.gpu_uuid] = (gpu, at)

    def _note(self, node: str, **news: Any) -> None:
        self._reports[node] = replace(self._reports[node], **news)


def _check_identity(session: AgentSession, agent: Caller) -> None:
    if agent.roles is not None and agent.node != session.node:
        raise PermissionDenied(
            f"{agent.name} is not the agent of node {session.node}; its identity must end in "
            f"/{session.node}",
            reason="NOT_AUTHORISED",
        )


def _check_owner(session: AgentSession, older: AgentSession | None) -> None:
    if older is not None and older.owner != session.owner:
        raise PermissionDenied(
            f"node {session.node} is joined from {older.owner}; its stream must end first",
            reason="NODE_TAKEN",
        )


def _goes_on(
    before: Sequence[inventory_pb2.GpuEnergy], after: Sequence[inventory_pb2.GpuEnergy]
) -> bool:
    """Return whether a report covers the one before it: counters have only grown."""
    return len(before) == len(after) and all(
        was.gpu_uuid == now.gpu_uuid and was.since == now.since and was.total_j <= now.total_j
        for was, now in zip(before, after, strict=True)
    )


def _counters(energy: Iterable[inventory_pb2.GpuEnergy]) -> dict[str, SegmentCounters]:
    """Return the work of each segment; one of several GPUs is in the account of each of them."""
    found: dict[str, SegmentCounters] = {}
    for each in (each for gpu in energy for each in gpu.segments):
        before = found.get(each.segment_id, NO_COUNTS)
        found[each.segment_id] = SegmentCounters(
            before.requests + each.requests,
            before.batches + each.batches,
            max(before.busy_s, each.busy_s),
            before.energy_j + each.active_j,
        )
    return found
