"""The account of the answers of one variant of a model."""

from __future__ import annotations

from services.router.core.accounting.histogram import Histogram
from services.router.core.worker_port import Usage


class TokenStats:
    """What a variant that generates text took in and gave.

    Attributes:
        input_tokens: Of prompts.
        output_tokens: Generated.
        first: From arrival to the first token, of answers that have one.
        between: Mean time from one token to the next, of answers that have two.
    """

    __slots__ = ("between", "first", "input_tokens", "output_tokens")

    def __init__(self) -> None:
        self.input_tokens = self.output_tokens = 0
        self.first, self.between = Histogram(), Histogram()

    def add(self, usage: Usage) -> None:
        """Count one answer."""
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        if usage.output_tokens:
            self.first.add(usage.first_token_s)
        if usage.output_tokens > 1:
            self.between.add(usage.token_s)


class VariantStats:
    """Numbers that only grow.

    Attributes:
        in_time: Answers within the SLO.
        late: All others.
        latency: From arrival to answer.
        queue: Of it: waiting, here and in the worker.
        compute: Of it: its batch executing.
        accuracy_sum: Stated accuracy, added up.
        energy_j, idle_energy_j: As workers granted them.
        carbon_gco2e: Of the active energy, as far as the intensity was known.
        tokens: Of text; None: it never told any.
    """

    __slots__ = (
        "accuracy_sum",
        "carbon_gco2e",
        "compute",
        "energy_j",
        "idle_energy_j",
        "in_time",
        "late",
        "latency",
        "queue",
        "tokens",
    )

    def __init__(self) -> None:
        self.in_time = self.late = 0
        self.latency, self.queue, self.compute = Histogram(), Histogram(), Histogram()
        self.accuracy_sum = self.energy_j = self.idle_energy_j = self.carbon_gco2e = 0.0
        self.tokens: TokenStats | None = None

    @property
    def answered(self) -> int:
        """How many answers there were."""
        return self.in_time + self.late
