"""What is counted of energy and carbon, and for how long it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from services.kit.config.section import Name, NonNegative, Positive, Section


class Embodied(Section):
    """Embodied carbon: of the GPUs' making, by time and slice (docs/accounting.md has sources).

    Attributes:
        lifetime_y: Over which it is spread evenly, years.
        kgco2e: Of one GPU, by GPU type; types left out have a published value, or none.
    """

    lifetime_y: Positive = 4.0
    kgco2e: Mapping[Name, NonNegative] = Field(default_factory=dict)


class Accounting(Section):
    """The account of energy and carbon, by hour, zone, node and model.

    Attributes:
        retention_d: How long hours are kept, days.
        embodied: Count embodied carbon, too; `{}`: with published values. None: do not.
    """

    retention_d: Annotated[int, Field(ge=1, le=36_500)] = 400
    embodied: Embodied | None = None
