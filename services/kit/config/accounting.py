"""Account of energy and carbon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from services.kit.config.section import Name, NonNegative, Positive, Section


class Embodied(Section):
    """Embodied carbon of the GPUs, by time and slice (sources: docs/accounting.md).

    Attributes:
        lifetime_y: Lifetime over which it is spread evenly, years.
        kgco2e: Embodied carbon of one GPU by type; other types have a published value, or none.
    """

    lifetime_y: Positive = 4.0
    kgco2e: Mapping[Name, NonNegative] = Field(default_factory=dict)


class Accounting(Section):
    """The account of energy and carbon, by hour, zone, node and model.

    Attributes:
        retention_d: Time for which hours are kept, days.
        embodied: Embodied carbon; `{}`: published values. None: not counted.
    """

    retention_d: Annotated[int, Field(ge=1, le=36_500)] = 400
    embodied: Embodied | None = None
