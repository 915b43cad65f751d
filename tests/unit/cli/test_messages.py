"""Messages for people and programs, from their descriptors."""

import json
from io import StringIO
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from rich.console import Console, RenderableType

from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import explanation_pb2, plan_pb2, planner_pb2
from services.cli.console.messages import Messages, title, values, word, write_csv
from services.cli.console.output import as_line
from services.kit.conditions import control_off
from services.kit.rpc.condition_messages import condition_messages

PLAN = plan_pb2.Plan(
    version=7,
    state=plan_pb2.PLAN_STATE_ACTIVE,
    inputs=plan_pb2.PlanInputs(
        intensity_gco2e_per_kwh={"US-CAL": 180.5},
        load_forecast={"digits": plan_pb2.LoadForecast(mean_rps=60, low_rps=50, high_rps=70)},
        accuracy_floor=0.95,
    ),
    prediction=plan_pb2.Prediction(power_w=115, latency_s={"digits": 0.09}, parked_gpus=["GPU-1"]),
    segments=[plan_pb2.PlannedSegment(node="node-0", share=0.5)],
    conditions=condition_messages([control_off("rack-7")]),
)


def shown(what: RenderableType) -> list[str]:
    """Return the lines of a wide terminal, each with single spaces."""
    console = Console(width=200, file=StringIO(), record=True)
    console.print(what)
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


def newer_plan() -> Any:
    """Return a message of a type as a later release may have it: with fields of every kind."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="newer.proto", package="newer", syntax="proto3")
    kind = file.message_type.add(name="Plan")
    for number, (name, type_) in enumerate(
        {
            "water_j": field.TYPE_DOUBLE,
            "switch_mhz": field.TYPE_UINT32,
            "spot_share": field.TYPE_FLOAT,
            "risk": field.TYPE_DOUBLE,
            "held": field.TYPE_BOOL,
            "note": field.TYPE_STRING,
        }.items(),
        start=1,
    ):
        kind.field.add(name=name, number=number, type=type_, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    newer = message_factory.GetMessageClass(pool.FindMessageTypeByName("newer.Plan"))
    return newer(water_j=1500, switch_mhz=990, spot_share=0.25, risk=0.125, held=True, note="why")


def test_fields_that_a_message_gains_are_shown_with_their_units() -> None:
    """No renderer knows them: their names and types say how."""
    expected = ["water 1.5 kJ", "switch 990 MHz", "spot share 25.0 %", "risk 0.125", "held yes"]

    assert [line for line in shown(Messages().details(newer_plan())) if line] == [
        *expected,
        "note why",
    ]
    assert json.loads(as_line(newer_plan()))["water_j"] == 1500


def test_details_have_maps_nested_messages_lists_and_conditions() -> None:
    """Nothing that is set is left out but what a command hides."""
    lines = shown(Messages({"GPU-1": "node-0/1"}).details(PLAN, hide=["version"]))

    for line in (
        "state active",
        "inputs intensity US-CAL 180.5 gCO2e/kWh",
        "inputs load forecast digits mean 60.0 req/s, low 50.0 req/s, high 70.0 req/s",
        "inputs accuracy floor 95.0 %",
        "prediction latency digits 90 ms",
        "prediction power 115 W",
        "prediction parked GPUs node-0/1",
        "node share",
        "node-0 50.0 %",
    ):
        assert line in lines
    assert any(line.startswith("rack-7") or "rack-7" in line for line in lines), "the condition"
    assert not any(line.startswith("version") for line in lines)


def test_a_table_has_the_columns_of_its_command_in_their_order() -> None:
    """Paths lead into nested messages; a field that is not set is blank."""
    columns: dict[str, Any] = {
        "slice": "spec.placement",
        ">gpu": lambda each: each.spec.gpu_uuid.lower(),
        ">share": "share",
        "MIG": "spec.model",
    }
    segment = plan_pb2.PlannedSegment(
        spec=inventory_pb2.SegmentSpec(
            gpu_uuid="GPU-1", placement=inventory_pb2.Placement(profile="3g.20gb", start=4)
        ),
        share=0.5,
    )
    heading, _, row = shown(Messages().table("", [segment], columns))

    assert heading == "slice gpu share MIG"
    assert row == "3g.20gb@4 gpu-1 50.0 %"


def test_messages_are_compared_field_by_field() -> None:
    """A model that only one of them has keeps its row beside those of the others."""
    one = explanation_pb2.Outlook(power_w=100, accuracy={"digits": 0.9})
    other = explanation_pb2.Outlook(power_w=150, accuracy={"chat": 0.8, "digits": 0.95})
    lines = shown(
        Messages().compared(
            "",
            {"plan": one, "BASE": other, "none": None},
            ("more", lambda a, b: str(b.value > a.value)),
        )
    )

    assert lines[0] == "plan BASE none more"
    assert sorted(lines[2:]) == [
        "accuracy chat 0.8000",
        "accuracy digits 0.9000 0.9500 True",
        "power 100 W 150 W True",
    ]


def test_only_numbers_have_a_change() -> None:
    """A text that a message gains is shown beside the other's."""
    one, other = newer_plan(), newer_plan()
    other.note = "other"
    compared = Messages().compared(
        "", {"a": one, "b": other}, ("sum", lambda a, b: str(a.value + b.value))
    )

    assert "note why other" in shown(compared)
    assert "risk 0.125 0.125 0.25" in shown(compared)


def test_csv_has_a_column_per_field_and_a_line_per_message() -> None:
    entry = planner_pb2.AccountEntry(model="digits", energy_j=1000.5)
    entry.hour.FromJsonString("2026-11-27T03:00:00Z")
    file = StringIO()
    write_csv([entry], planner_pb2.AccountEntry, file)
    header, line = file.getvalue().splitlines()

    found = dict(zip(header.split(","), line.split(","), strict=True))
    assert list(found) == list(planner_pb2.AccountEntry.DESCRIPTOR.fields_by_name)
    assert (found["hour"], found["model"], found["energy_j"]) == (
        *("2026-11-27T03:00:00Z", "digits", "1000.5"),
    )


@pytest.mark.parametrize(
    ("number", "said"),
    [(plan_pb2.PLAN_STATE_ROLLING, "rolling"), (0, ""), (99, "99")],
)
def test_an_enum_is_a_word_without_its_prefix(number: int, said: str) -> None:
    """A value that only a newer peer knows is its number."""
    assert word(plan_pb2.PlanState.DESCRIPTOR, number) == said


def test_a_title_has_no_unit() -> None:
    fields = plan_pb2.Prediction.DESCRIPTOR.fields_by_name

    assert [title(fields[name]) for name in ("carbon_gco2e_per_h", "parked_power_w", "gap")] == [
        *("carbon", "parked power", "gap"),
    ]


def filled(message: Any, depth: int = 2) -> Any:
    """Set every field of a message, and of the messages in it down to a depth."""
    for field in message.DESCRIPTOR.fields:
        target, kind = getattr(message, field.name), field.message_type
        one = "x" if field.type == field.TYPE_STRING else 1
        if kind is None and field.is_repeated:
            target.append(one)
        elif kind is None:
            setattr(message, field.name, one)
        elif kind.GetOptions().map_entry and kind.fields_by_name["value"].message_type is None:
            target["k"] = 1
        elif kind.GetOptions().map_entry:
            filled(target["k"], depth - 1)
        elif kind.full_name == "google.protobuf.Timestamp":
            target.FromSeconds(1)
        elif depth:
            filled(target.add() if field.is_repeated else target, depth - 1)
    return message


@pytest.mark.parametrize(
    "kind",
    [plan_pb2.Plan, explanation_pb2.Explanation, planner_pb2.FleetNode],
    ids=lambda k: k.__name__,
)
def test_no_field_of_a_message_is_left_out_of_its_details(kind: Any) -> None:
    """Values have their titles, lists a table, conditions their sentence."""
    lines = "\n".join(shown(Messages().details(filled(kind())))).lower()

    for field in kind.DESCRIPTOR.fields:
        condition = field.message_type is not None and field.message_type.name == "Condition"
        assert ("control_off x: x" if condition else title(field).lower()) in lines, field.name


def test_values_are_those_of_the_message_itself() -> None:
    """Enums are words; what is optional and not set is none, and other values are their default."""
    found = values(plan_pb2.Prediction(power_w=5))

    assert (found["power_w"], found["gap"], found["gpus"]) == (5.0, None, 0)
    assert "latency_s" not in found
    assert values(PLAN)["state"] == "active"


def test_a_heading_is_not_broken_where_its_table_is_narrow() -> None:
    details = Messages().details(plan_pb2.Outcome(energy_j=5), "While it was active")

    assert "While it was active" in shown(details)
