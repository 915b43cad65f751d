"""Conditions <-> their messages."""

from collections.abc import Iterable

from cinquefoil.condition.v1 import condition_pb2 as pb
from cinquefoil.condition.v1.records import Condition, ConditionKind
from services.kit.conditions import EFFECTS
from services.kit.rpc.record_mapping import from_message, to_message


def condition_messages(conditions: Iterable[Condition]) -> list[pb.Condition]:
    """Return the messages of conditions."""
    return [to_message(each, pb.Condition) for each in conditions]


def conditions_from(messages: Iterable[pb.Condition]) -> tuple[Condition, ...]:
    """Return the conditions of messages, without kinds that only a newer peer knows."""
    return tuple(
        from_message(each, Condition) for each in messages if ConditionKind(each.kind) in EFFECTS
    )
