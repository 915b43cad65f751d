"""Every figure that an agent or a router sends has a bound; a new field has none until listed."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import planner_pb2
from services.kit.errors import InvalidArgument
from services.planner.adapters.wire.convert_energy import check_energy
from services.planner.adapters.wire.convert_node import check_drifts, node_from
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
}

ELSEWHERE = {
    "cinquefoil.planner.v1.JoinRequest.term": "Leading.check",
    "cinquefoil.planner.v1.ModelLoad": "core/load_report.py clamps counts and leaves latencies out",
    "cinquefoil.planner.v1.ReportLoadRequest.first_second": "Burstiness.observe: about now",
    "cinquefoil.planner.v1.ReportLoadRequest.routing_revision": "shown only",
    "google.protobuf.Duration": "load_from refuses, core/load_report.py clamps",
    "google.protobuf.Timestamp": "nanoseconds of 64 bits: a new beginning of a GPU's own account",
    "cinquefoil.gpuagent.v1.StepResult.elapsed_s": "not read",
    "cinquefoil.gpuagent.v1.Segment.restarts": "shown only",
    "cinquefoil.gpuagent.v1.SliceProfile.gpu_instance_profile_id": "not read",
    "cinquefoil.gpuagent.v1.SegmentEnergy.batches": "not read",
    "cinquefoil.gpuagent.v1.SegmentEnergy.requests": "a count of the node's own account",
    "cinquefoil.gpuagent.v1.SegmentEnergy.stage": "zero or not: where requests are counted",
    "cinquefoil.gpuagent.v1.MpsLimit.memory_bytes": "sent back to its own node only",
}
"""Figures that the checks below do not bound, by field or message: what does, or why none must."""


def figures(root: Descriptor) -> Iterator[FieldDescriptor]:
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


def listed(field: FieldDescriptor) -> bool:
    message = message_of(field)
    parent = message.rpartition(".")[0]
    return bool({field.full_name, message, parent} & ELSEWHERE.keys())


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


def check(request: planner_pb2.JoinRequest) -> None:
    node_from(request.node)
    check_energy(request.energy)
    check_drifts(request.drifts.drifts)


def messages(root: Any) -> Iterator[Any]:
    yield root
    for field, value in root.ListFields():
        if field.message_type is not None:
            for each in value if field.is_repeated else (value,):
                yield from messages(each)


def put(request: planner_pb2.JoinRequest, field: FieldDescriptor, value: float) -> None:
    """Put a figure in each message that has it."""
    found = [each for each in messages(request) if each.DESCRIPTOR is field.containing_type]
    assert found, f"{field.full_name}: report() lacks it"
    for each in found:
        if field.is_repeated:
            getattr(each, field.name).append(value)
        else:
            setattr(each, field.name, value)


def test_the_report_itself_is_accepted() -> None:
    check(report())


@pytest.mark.parametrize(
    "field",
    [each for each in figures(planner_pb2.JoinRequest.DESCRIPTOR) if not listed(each)],
    ids=lambda field: field.full_name,
)
def test_no_figure_of_an_agent_is_believed_beyond_its_bound(field: FieldDescriptor) -> None:
    """Not a number, no end, and below nothing; of whole numbers the largest."""
    for lie in _LARGEST.get(field.type, (math.nan, math.inf, -math.inf)):
        request = report()
        put(request, field, lie)
        with pytest.raises(InvalidArgument):
            check(request)


def test_every_figure_of_a_router_is_listed() -> None:
    """A field that is new in a load report needs a bound, and a line that says where it is."""
    found = figures(planner_pb2.ReportLoadRequest.DESCRIPTOR)
    assert [each.full_name for each in found if not listed(each)] == []


def test_the_list_names_figures_that_there_are() -> None:
    """Fields that are gone leave the list."""
    roots = (planner_pb2.JoinRequest.DESCRIPTOR, planner_pb2.ReportLoadRequest.DESCRIPTOR)
    found = {each for root in roots for each in figures(root)}
    known = {each.full_name for each in found} | {message_of(each) for each in found}
    assert not ELSEWHERE.keys() - known
