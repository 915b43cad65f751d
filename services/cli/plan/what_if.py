"""Reads options of `plan dry-run`; the planner checks the values."""

from collections.abc import Iterable
from datetime import timedelta

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.cli.console.durations import seconds
from services.kit.errors import InvalidArgument
from services.kit.segment import whole_number


def numbers(option: str, form: str, texts: Iterable[str] | None) -> dict[str, float]:
    """Return an option's values, "NAME=NUMBER" each, by name.

    Args:
        option: Its name, for errors.
        form: What it must look like, for errors.
        texts: As they were given; None: none was.

    Raises:
        InvalidArgument: A value cannot be read.
    """
    return dict(_named(option, form, text) for text in texts or ())


def _named(option: str, form: str, text: str) -> tuple[str, float]:
    name, equals, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        equals = ""
    if not (name and equals):
        raise InvalidArgument(f"{option}: must be {form}, got {text!r}", field=option)
    return name, value


def within(option: str, text: str) -> timedelta:
    """Return a time such as "4h".

    Raises:
        InvalidArgument: It is none.
    """
    try:
        return timedelta(seconds=seconds(text))
    except ValueError as error:
        raise InvalidArgument(f"{option}: {error}", field=option) from error


def cost(
    carbon_price_eur_per_t: float | None, accuracy_value_eur: float | None
) -> plan_pb2.CostObjective | None:
    """Return prices of an objective as a message; None: neither is given."""
    if carbon_price_eur_per_t is None and accuracy_value_eur is None:
        return None
    return plan_pb2.CostObjective(
        carbon_price_eur_per_t=carbon_price_eur_per_t, accuracy_value_eur=accuracy_value_eur
    )


def carbon_budget(text: str) -> planner_pb2.CarbonBudget:
    """Return "KG/PERIOD" or "KG/PERIOD:MODEL,MODEL" as a message.

    Raises:
        InvalidArgument: It is not.
    """
    size, _, models = text.partition(":")
    kg, _, per = size.partition("/")
    try:
        return planner_pb2.CarbonBudget(
            kg=float(kg), per=per, models=filter(None, models.split(","))
        )
    except ValueError as error:
        option = "--carbon-budget"
        why = f"must be KG/PERIOD or KG/PERIOD:MODEL,MODEL, got {text[:80]!r}"
        raise InvalidArgument(f"{option}: {why}", field=option) from error


def added_gpus(text: str) -> planner_pb2.AddedGpus:
    """Return "TYPE:NODE:COUNT" as a message.

    Raises:
        InvalidArgument: It is not.
    """
    kind, _, rest = text.partition(":")
    node, _, count = rest.rpartition(":")
    number = whole_number(count, 2**31 - 1)
    if not (kind and node and number is not None):
        raise InvalidArgument(
            f"--add-gpus: must be TYPE:NODE:COUNT, got {text!r}", field="--add-gpus"
        )
    return planner_pb2.AddedGpus(type=kind, node=node, count=number)
