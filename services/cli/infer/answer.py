"""An answer, apart from how it was got and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """An answered request.

    Attributes:
        model: The model that answered.
        latency_s: Seen by this client, s.
        outputs: Tensors by name, as nested lists.
        parameters: What the router says of the answer: variant, accuracy, energy, carbon.
        truth: The right label, where it is known.
    """

    model: str
    latency_s: float
    outputs: dict[str, Any]
    parameters: dict[str, Any]
    truth: int | None = None
