"""Statistics of the answers of one variant of a model."""

from __future__ import annotations

from services.kit.request_cost import Usage
from services.router.core.accounting.durations import Histogram


class TokenStats:
    """Tokens of a variant that generates text.

    Attributes:
        input_tokens: Tokens of the prompts.
        output_tokens: Tokens generated.
        first: Time from arrival to the first token, of answers that have one.
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
    """Counters of one variant.

    Attributes:
        in_time: Answers within the SLO.
        late: Answers beyond it.
        latency: Time from arrival to answer.
        queue: Waiting time of it, in the router and in the worker.
        compute: Execution time of the request's batch.
        accuracy_sum: Sum of the stated accuracies.
        energy_j, idle_energy_j: As workers attributed them.
        carbon_gco2e: Carbon of the active energy, as far as the intensity was known.
        tokens: Tokens of text; None: no answer reported any.
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
        """Number of answers."""
        return self.in_time + self.late
