"""From the words of the command line to a WhatIf; the planner checks the values."""

from __future__ import annotations

from collections.abc import Iterable

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from services.kit.errors import InvalidArgument


def what_if(  # noqa: PLR0913  # one argument per option
    *,
    demand: Iterable[str] = (),
    intensity: Iterable[str] = (),
    carbon_weight: float | None = None,
    accuracy_floor: float | None = None,
    strategy: str = "",
    goal: str = "",
    without_gpus: Iterable[str] = (),
    added_gpus: Iterable[str] = (),
) -> planner_pb2.WhatIf:
    """Return the circumstances that the options describe.

    Args:
        demand: "MODEL=RPS" each.
        intensity: "ZONE=GRAMS" each, gCO2e/kWh.
        carbon_weight: CLOVER's lambda, 0..1; None: as it is.
        accuracy_floor: 0..1; None: as it is.
        strategy: "": as it is.
        goal: The only one that counts, for example "fewest-gpus"; "": as they are.
        without_gpus: UUIDs.
        added_gpus: "TYPE:NODE:COUNT" each.

    Raises:
        InvalidArgument: An option cannot be read.
    """
    return planner_pb2.WhatIf(
        demand_rps=dict(_named("--demand", "MODEL=RPS", text) for text in demand),
        intensity_gco2e_per_kwh=dict(
            _named("--intensity", "ZONE=GRAMS", text) for text in intensity
        ),
        carbon_weight=carbon_weight,
        accuracy_floor=accuracy_floor,
        strategy=strategy,
        goals=plan_pb2.Goals(**{goal.replace("-", "_"): 1.0}) if goal else None,
        without_gpus=without_gpus,
        added_gpus=[_added(text) for text in added_gpus],
    )


def _named(option: str, form: str, text: str) -> tuple[str, float]:
    name, equals, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        equals = ""
    if not (name and equals):
        raise InvalidArgument(f"{option}: must be {form}, got {text!r}", field=option)
    return name, value


def _added(text: str) -> planner_pb2.AddedGpus:
    kind, _, rest = text.partition(":")
    node, _, count = rest.rpartition(":")
    if not (kind and node and count.isascii() and count.isdigit() and int(count) < 2**31):
        raise InvalidArgument(
            f"--add-gpus: must be TYPE:NODE:COUNT, got {text!r}", field="--add-gpus"
        )
    return planner_pb2.AddedGpus(type=kind, node=node, count=int(count))
