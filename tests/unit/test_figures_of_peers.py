"""Every figure that a peer sends has a bound; a new field has none until it is listed."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from cinquefoil.carbon.v1 import carbon_pb2
from cinquefoil.gpuagent.v1 import inventory_pb2, steps_pb2, worker_pb2
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.predictor.v1 import predictor_pb2
from cinquefoil.regions.v1 import regions_pb2
from services.gpuagent.planner_link import convert as agent_convert
from services.kit.clock import RealClock
from services.kit.errors import ServiceError
from services.kit.rpc.intensity_figures import implausible
from services.planner.adapters.region_wire import grants_from, wishes_from
from services.planner.adapters.wire.convert import load_from
from services.planner.adapters.wire.convert_energy import check_energy, counters_from
from services.planner.adapters.wire.convert_node import check_drifts, node_from
from services.planner.core.accounting.accountant import Accountant
from services.planner.core.accounting.site import Site
from services.planner.core.load_report import bounded
from services.predictor.adapters.convert import check_observations
from services.router.adapters.convert import changed_table, to_table
from services.router.adapters.predictor_client import decile_of, tokens_of
from services.router.adapters.worker_stream import WorkerStream
from services.router.core.model import Instance, Request, RoutingTable
from tests.unit.planner.wire.test_convert import gpu_message, spec_message

_NO_FIGURES = {
    FieldDescriptor.TYPE_BOOL,
    FieldDescriptor.TYPE_BYTES,
    FieldDescriptor.TYPE_ENUM,
    FieldDescriptor.TYPE_MESSAGE,
    FieldDescriptor.TYPE_STRING,
}
_LARGEST = {
    FieldDescriptor.TYPE_INT32: (2**31 - 1,),
    FieldDescriptor.TYPE_UINT32: (2**32 - 1,),
    FieldDescriptor.TYPE_INT64: (2**63 - 1,),
    FieldDescriptor.TYPE_UINT64: (2**64 - 1,),
    FieldDescriptor.TYPE_DOUBLE: (math.nan, math.inf, -math.inf, -1e300, 1e300),
}


def figures(root: Any) -> Iterator[FieldDescriptor]:
    """Yield the numeric fields of a message and of those in it."""
    seen, waiting = set[str](), [root]
    while waiting:
        message = waiting.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        for field in message.fields:
            if field.message_type is not None:
                waiting.append(field.message_type)
            if field.type not in _NO_FIGURES:
                yield field


def message_of(field: FieldDescriptor) -> str:
    found = field.containing_type
    assert found is not None
    return found.full_name


# ---- the peers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """Messages of one peer to another.

    Attributes:
        name: Who sends them to whom.
        sample: Returns a message with every message in it once, which is accepted.
        read: Reads a message, and returns what is believed of it, or refuses it.
        elsewhere: Figures that reading does not bound, by field or message: what does, or why none
            must.
        shown: Figures that are shown only: they must be numbers.
    """

    name: str
    sample: Callable[[], Message]
    read: Callable[[Any], object]
    elsewhere: Mapping[str, str]
    shown: frozenset[str] = frozenset()

    def lists(self, field: FieldDescriptor) -> bool:
        """Return whether a field is bounded elsewhere."""
        message = message_of(field)
        parent = message.rpartition(".")[0]
        return bool({field.full_name, message, parent} & self.elsewhere.keys())


def report() -> planner_pb2.JoinRequest:
    """Return a report with every message in it once, which is accepted."""
    found = planner_pb2.JoinRequest()
    node = found.node
    node.name, node.zone, node.pue = "node-a", "Z", 1.2
    gpu = gpu_message()
    gpu.type.performance.fp16_tflops, gpu.type.performance.memory_gb_per_s = 300.0, 2000.0
    place = inventory_pb2.Placement(profile="1g.5gb", start=3)
    gpu.slices.add().placement.CopyFrom(place)
    node.gpus.append(gpu)
    spec = spec_message(placement=place)
    spec.limits.add(thread_percentage=50)
    node.segments.add(state=inventory_pb2.SEGMENT_STATE_READY, endpoints=["h:1"], spec=spec)
    found.drifts.drifts.add(model="m")
    found.energy.add(gpu_uuid="GPU-a").segments.add(segment_id="s-1", model="m")
    return found


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def messages(root: Any) -> Iterator[Any]:
    yield root
    for field, value in root.ListFields():
        if field.message_type is not None and not is_map(field):
            for each in value if field.is_repeated else (value,):
                yield from messages(each)


def join(request: planner_pb2.JoinRequest) -> object:
    """Read a node, and book its energy: a second report, a second after the first."""
    accountant = Accountant(
        lambda node: Site(node, "Z", 1.2, 100.0, max_power_w={"GPU-a": 400.0, "GPU-b": 400.0})
    )
    check_drifts(request.drifts.drifts)
    booked = []
    for at_s, energy in ((1e9, report().energy), (1e9 + 1, request.energy)):
        check_energy(energy)
        found = counters_from([(each, datetime.fromtimestamp(at_s, UTC)) for each in energy], {"m"})
        booked = [accountant.bounded("node-a", found, at_s)[0]]
        accountant.book("node-a", booked[0])
    return node_from(request.node), booked


def load() -> planner_pb2.ReportLoadRequest:
    found = planner_pb2.ReportLoadRequest(router_id="r-1", routing_revision=7)
    found.window.FromSeconds(1)
    found.models.add(
        model="digits", arrivals=9, answered=8, failed=1, late=2, queue_depth=3, refused=1,
        latency_s={"95": 0.1}, answered_by_variant={"small": 8}, input_tokens=5, output_tokens=6,
        arrivals_per_s=[9],
    )  # fmt: skip
    found.models[0].waiting.singles.add(due_s=60.0, requests=3)
    return found


def loaded(message: planner_pb2.ReportLoadRequest) -> object:
    report = load_from(message, {"digits": 95.0})
    return bounded(report, {"digits": ("small",)}, 1.0, {"digits": report.tokens["digits"]})[0]


def table() -> plan_pb2.RoutingTable:
    found = plan_pb2.RoutingTable(revision=1, plan_version=2, term=3)
    found.models.add(model="digits", slo_latency_s=0.1, slo_percentile=95, intensity_threshold=1)
    found.models[0].instances.add(endpoint="h:1", segment_id="s-1", share=1.0, credits=8, pue=1.2)
    return found


def change() -> plan_pb2.RoutingChange:
    found = plan_pb2.RoutingChange(base_revision=1, revision=2, plan_version=2, term=3)
    found.models.add(routes=table().models[0])
    return found


def intensities() -> carbon_pb2.WatchResponse:
    found = carbon_pb2.WatchResponse()
    entry = found.intensities.add(zone="Z", intensity_gco2e_per_kwh=200, ratio=1, percentile=50)
    entry.since.FromSeconds(1_700_000_000)
    entry.staleness.FromSeconds(60)
    period = entry.forecast.periods.add(intensity_gco2e_per_kwh=200)
    period.since.FromSeconds(1_700_000_000)
    period.length.FromSeconds(3600)
    return found


def wishes() -> regions_pb2.ExchangeRequest:
    found = regions_pb2.ExchangeRequest(region="a")
    found.wishes.add(model="m", rate_rps=5, home_energy_j=1, home_intensity_gco2e_per_kwh=400)
    return found


def offers() -> regions_pb2.ExchangeResponse:
    found = regions_pb2.ExchangeResponse(region="b")
    offer = found.offers.add(model="m", energy_j=1, intensity_gco2e_per_kwh=50, spare_rps=7)
    offer.valid.FromSeconds(30)
    offer.hours.add(intensity_gco2e_per_kwh=40, spare_rps=6, energy_j=1)
    return found


def learned(message: predictor_pb2.ObserveRequest) -> object:
    check_observations(message, {})
    return message


def observations() -> predictor_pb2.ObserveRequest:
    found = predictor_pb2.ObserveRequest()
    found.observations.add(model="chat", prompt=b"a", output_tokens=5)
    return found


class Listener:
    """Keeps what a worker's stream believes."""

    def __init__(self) -> None:
        self.believed: list[object] = []

    def __getattr__(self, _: str) -> Callable[..., None]:
        return lambda *found: self.believed.extend(found[1:])


def results() -> worker_pb2.ExecuteResponse:
    found = worker_pb2.ExecuteResponse(credits=8)
    found.hello.segment_id, found.hello.model = "s-1", "digits"
    found.results.add(
        id=7, receipt=worker_pb2.Receipt(energy_j=1.0, input_tokens=1), status="ABORTED"
    )
    return found


def executed(message: worker_pb2.ExecuteResponse) -> object:
    """Read it as of a worker that has had one request for a second."""
    clock, listener = RealClock(), Listener()
    now_s = clock.monotonic()
    instance = Instance("h:1", "s-1", "digits", "v", 1.0, 1.0, 8, power_limit_w=300.0)
    stream: Any = WorkerStream(instance, listener, None, clock)  # type: ignore[arg-type]
    stream._sent[7] = Request(7, "digits", b"", arrived_s=now_s - 1, deadline_s=now_s + 1)
    refused = list[str]()

    class Link:
        abort = staticmethod(refused.append)

    stream._take(Link, message.SerializeToString())
    return None if refused else listener.believed


def steps() -> list[steps_pb2.Step]:
    spec = spec_message(placement=inventory_pb2.Placement(profile="1g.5gb", start=3))
    spec.limits.add(thread_percentage=50)
    stop = steps_pb2.StopSegment(segment_id="s-1")
    stop.grace.FromSeconds(5)
    lock = steps_pb2.LockClock(gpu_uuid="GPU-a", clock_mhz=1000)
    create = steps_pb2.CreateSlice(gpu_uuid="GPU-a", placement=spec.placement)
    return [
        steps_pb2.Step(start_segment=steps_pb2.StartSegment(spec=spec)),
        steps_pb2.Step(stop_segment=stop),
        steps_pb2.Step(lock_clock=lock),
        steps_pb2.Step(create_slice=create),
    ]


def step() -> steps_pb2.Step:
    found = steps_pb2.Step(term=1)
    group = found.change.groups.add()
    for each in steps():
        group.actions.add().MergeFromString(b"")
        name = each.WhichOneof("action")
        assert name is not None
        getattr(group.actions[-1], name).CopyFrom(getattr(each, name))
    return found


_NO_TERM = "core/model.py and core/terms.py compare it with the last"
_TIME = "nanoseconds of 64 bits"

PEERS = (
    Peer(
        "agent to planner",
        report,
        join,
        {
            "cinquefoil.planner.v1.JoinRequest.term": "Leading.check",
            "google.protobuf.Timestamp": f"{_TIME}: a new beginning of a GPU's own account",
            "cinquefoil.gpuagent.v1.StepResult.elapsed_s": "not read",
            "cinquefoil.gpuagent.v1.Segment.restarts": "shown only",
            "cinquefoil.gpuagent.v1.SliceProfile.gpu_instance_profile_id": "not read",
            "cinquefoil.gpuagent.v1.SegmentEnergy.batches": "not read",
            "cinquefoil.gpuagent.v1.SegmentEnergy.requests": "a count of the node's own account",
            "cinquefoil.gpuagent.v1.SegmentEnergy.stage": "zero or not: where requests are counted",
            "cinquefoil.gpuagent.v1.MpsLimit.memory_bytes": "sent back to its own node only",
        },
        frozenset(
            {
                "cinquefoil.gpuagent.v1.GpuEnergy.error_ratio",
                "cinquefoil.gpuagent.v1.GpuEnergy.power_w",  # AgentSessions clamps it
                "cinquefoil.gpuagent.v1.GpuEnergy.unattributed_j",
                "cinquefoil.gpuagent.v1.SegmentEnergy.busy_s",
                "cinquefoil.gpuagent.v1.SegmentEnergy.granted_j",
            }
        ),
    ),
    Peer(
        "router to planner",
        load,
        loaded,
        {
            "cinquefoil.planner.v1.ReportLoadRequest.first_second": "Burstiness.observe: about now",
            "cinquefoil.planner.v1.ReportLoadRequest.routing_revision": "shown only",
            "cinquefoil.planner.v1.ModelLoad.input_tokens": "compared with the last report's",
            "cinquefoil.planner.v1.ModelLoad.output_tokens": "compared with the last report's",
            "cinquefoil.planner.v1.ModelLoad.cached_input_tokens": "at most input_tokens",
            "cinquefoil.planner.v1.ModelLoad.failed": "not read",
            "cinquefoil.planner.v1.ModelLoad.queue_depth": "not read",
            "cinquefoil.planner.v1.ModelLoad.overloaded_s": "not read",
            "cinquefoil.planner.v1.RegionLink.round_trip_s": "finite: control/regions.py",
            "cinquefoil.planner.v1.RegionLoad.sent": "at most the arrivals: control/regions.py",
            **{
                f"cinquefoil.planner.v1.RegionLoad.{name}": "region_wire.moved_from"
                for name in ("answered", "answered_j", "answered_gco2e", "sent_j", "sent_gco2e")
            },
            "cinquefoil.planner.v1.RegionLoad.sent_waiting": "at most sent: control/regions.py",
            "cinquefoil.planner.v1.RegionLoad.received": "at most the arrivals, too",
            "cinquefoil.planner.v1.RegionLoad.returned": "not read",
            **{
                f"cinquefoil.planner.v1.WaitingLoad.{name}": "not read"
                for name in (
                    "queued",
                    "queued_tokens",
                    "first_due_s",
                    "in_flight",
                    "room",
                    "answered",
                    "ended",
                    "input_tokens",
                    "output_tokens",
                    "energy_j",
                    "marginal_energy_j",
                    "service_s",
                )
            },
        },
    ),
    Peer(
        "planner to router",
        table,
        to_table,
        {
            "cinquefoil.planner.v1.RoutingTable.term": _NO_TERM,
            "cinquefoil.planner.v1.RoutingTable.revision": "compared only",
            "cinquefoil.planner.v1.RoutingTable.plan_version": "shown only",
        },
    ),
    Peer(
        "planner to router: a change",
        change,
        lambda message: changed_table(RoutingTable(1, 2, ()), message),
        {
            "cinquefoil.planner.v1.RoutingChange.term": _NO_TERM,
            "cinquefoil.planner.v1.RoutingChange.revision": "compared only",
            "cinquefoil.planner.v1.RoutingChange.base_revision": "compared only",
            "cinquefoil.planner.v1.RoutingChange.plan_version": "shown only",
        },
    ),
    Peer(
        "planner to agent",
        step,
        agent_convert.step,
        {
            "cinquefoil.gpuagent.v1.Step.term": _NO_TERM,
            "cinquefoil.gpuagent.v1.MpsLimit.memory_bytes": "MPS takes it, or refuses the worker",
        },
    ),
    Peer(
        "carbon to planner and routers",
        intensities,
        lambda message: [each for each in message.intensities if not implausible(each)],
        {},
    ),
    Peer(
        "predictor to router",
        lambda: predictor_pb2.PredictResponse(id=1, expected_tokens=5, rank=0.5),
        lambda message: (decile_of(message), tokens_of(message)),
        {},
    ),
    Peer(
        "router to predictor",
        observations,
        learned,
        {},
    ),
    Peer("worker to router", results, executed, {}),
    Peer("region to region: wishes", wishes, wishes_from, {}),
    Peer("region to region: offers", offers, lambda message: grants_from("b", message), {}),
)
"""Workers bound a figure of a router as they queue it: `tests/rpc/worker/test_routers.py`."""


def _is_no_number(lie: float) -> bool:
    return not math.isfinite(lie)


def numbers(value: object) -> Iterator[float]:
    """Yield the numbers in what was read."""
    parts: Iterable[object] = ()
    if isinstance(value, timedelta):
        yield value.total_seconds()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value
    elif isinstance(value, Message):
        parts = [each for _, each in value.ListFields()]
    elif is_dataclass(value):
        parts = [getattr(value, field.name) for field in fields(value)]
    elif isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, Iterable) and not isinstance(value, str | bytes):
        parts = value
    for each in parts:
        yield from numbers(each)


def put(message: Message, field: FieldDescriptor, value: float) -> None:
    """Put a figure in each message, or map, that has it."""
    found = 0
    for each in messages(message):
        maps = [its for its, _ in each.ListFields() if its.message_type is field.containing_type]
        for its in filter(is_map, maps):
            for key in getattr(each, its.name):
                getattr(each, its.name)[key] = value
                found += 1
        if each.DESCRIPTOR is not field.containing_type:
            continue
        found += 1
        if field.is_repeated:
            getattr(each, field.name).append(value)
        else:
            setattr(each, field.name, value)
    assert found, f"{field.full_name}: the sample lacks it"


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_the_sample_itself_is_believed(peer: Peer) -> None:
    assert peer.read(peer.sample()) is not None


def _figures() -> Iterator[Any]:
    for peer in PEERS:
        for field in figures(peer.sample().DESCRIPTOR):
            if not peer.lists(field):
                yield pytest.param(peer, field, id=f"{peer.name}: {field.full_name}")


@pytest.mark.parametrize(("peer", "field"), list(_figures()))
def test_no_figure_of_a_peer_is_believed_beyond_its_bound(
    peer: Peer, field: FieldDescriptor
) -> None:
    """Not a number, no end, far below nothing; of whole numbers the largest: refused, or cut."""
    honest = set(numbers(peer.read(peer.sample())))
    lies = filter(_is_no_number, _LARGEST[field.type])
    for lie in lies if field.full_name in peer.shown else _LARGEST[field.type]:
        message = peer.sample()
        put(message, field, lie)
        try:
            believed = list(numbers(peer.read(message)))
        except ServiceError:
            continue
        assert not any(map(math.isnan, believed))
        assert lie in honest or lie not in believed


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_the_list_names_figures_that_there_are(peer: Peer) -> None:
    """Fields that are gone leave the list."""
    found = set(figures(peer.sample().DESCRIPTOR))
    known = {each.full_name for each in found} | {message_of(each) for each in found}
    assert not peer.elsewhere.keys() - known
