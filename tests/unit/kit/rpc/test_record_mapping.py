"""Generated records and their messages hold the same."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import IntEnum
from importlib import import_module
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.struct_pb2 import Value

from cinquefoil.carbon.v1 import carbon_pb2
from cinquefoil.condition.v1 import condition_pb2, records
from cinquefoil.gpuagent.v1 import inventory_pb2, steps_pb2, worker_pb2
from cinquefoil.planner.v1 import explanation_pb2, plan_pb2, planner_pb2
from cinquefoil.planner.v1.records import ChangedSetting, Plan
from cinquefoil.predictor.v1 import predictor_pb2
from cinquefoil.router.v1 import router_pb2
from services.kit.rpc.record_mapping import from_message, to_message

FILES = (
    carbon_pb2,
    condition_pb2,
    inventory_pb2,
    steps_pb2,
    worker_pb2,
    explanation_pb2,
    plan_pb2,
    planner_pb2,
    predictor_pb2,
    router_pb2,
)


def pairs() -> Iterator[tuple[Descriptor, type[Any]]]:
    """Yield each message that has a record, and the record."""
    for file in FILES:
        package = file.__name__.rpartition(".")[0]
        found = vars(import_module(f"{package}.records"))
        for name, descriptor in file.DESCRIPTOR.message_types_by_name.items():
            if name in found:
                yield descriptor, found[name]


PAIRS = [pytest.param(*pair, id=pair[0].full_name) for pair in pairs()]


def single(field: FieldDescriptor) -> Any:
    """Return a value of a field that is not its default; times are whole microseconds."""
    if field.message_type is not None:
        return filled(field.message_type)
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    kinds = {field.CPPTYPE_STRING: "x", field.CPPTYPE_BOOL: True, field.CPPTYPE_DOUBLE: 0.5}
    return (
        b"x" if field.type == field.TYPE_BYTES else kinds.get(field.cpp_type, 7000)
    )  # whole microseconds


def filled(descriptor: Descriptor) -> Message:
    """Return a message of which every field is set; of a oneof, the last."""
    message = GetMessageClass(descriptor)()
    if isinstance(message, Value):
        message.string_value = "x"
        return message
    for field in descriptor.fields:
        part = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            if value.message_type is None:
                part[single(key)] = single(value)
            else:
                part[single(key)].CopyFrom(single(value))
        elif field.is_repeated:
            part.extend([single(field)] * 2)
        elif field.message_type is None:
            setattr(message, field.name, single(field))
        else:
            part.CopyFrom(single(field))
            part.SetInParent()
    return message


@pytest.mark.parametrize(("descriptor", "record"), PAIRS)
def test_a_record_has_the_fields_of_its_message(descriptor: Descriptor, record: type[Any]) -> None:
    """Stubs and records are of the same .proto files."""
    assert is_dataclass(record)
    assert [each.name for each in fields(record)] == [each.name for each in descriptor.fields]


@pytest.mark.parametrize(("descriptor", "record"), PAIRS)
def test_all_of_a_message_survives_the_way_through_its_record(
    descriptor: Descriptor, record: type[Any]
) -> None:
    """No field is lost or changed, whatever its type."""
    message = filled(descriptor)
    assert to_message(from_message(message, record), type(message)) == message


@pytest.mark.parametrize(("descriptor", "record"), PAIRS)
def test_an_empty_message_is_the_record_of_defaults(
    descriptor: Descriptor, record: type[Any]
) -> None:
    """The defaults of records are protobuf's."""
    assert from_message(GetMessageClass(descriptor)(), record) == record()


def test_an_enum_value_that_only_newer_services_know_is_unspecified() -> None:
    """A message of a newer service can be read."""
    kind: type[IntEnum] = records.ConditionKind
    assert kind(2**20) is records.ConditionKind.UNSPECIFIED
    assert from_message(condition_pb2.Condition(kind=2**20), records.Condition).kind == 0  # type: ignore[arg-type]


def test_what_is_optional_is_none_while_unset() -> None:
    """Unset and empty differ where the .proto says `optional`."""
    assert from_message(plan_pb2.Plan(), Plan).outcome is None
    set_empty = plan_pb2.Plan(outcome=plan_pb2.Outcome())
    assert from_message(set_empty, Plan).outcome is not None
    assert not to_message(Plan(), plan_pb2.Plan).HasField("outcome")


@pytest.mark.parametrize("value", [None, True, "x", 2.5, [1.0, "a"], {"a": {"b": None}}])
def test_a_setting_s_value_is_json(value: object) -> None:
    """Null, too, is a value."""
    message = to_message(ChangedSetting(path="p", value=value), planner_pb2.ChangedSetting)
    assert message.value.WhichOneof("kind") is not None
    assert from_message(message, ChangedSetting).value == value
