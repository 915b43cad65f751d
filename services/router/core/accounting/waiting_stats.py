"""Statistics of a model's requests that can wait: no other counter has them."""

from dataclasses import dataclass, field

from services.router.core.accounting.receipt_watchers import Receipt


@dataclass(slots=True)
class WaitingStats:
    """Counters since start.

    Attributes:
        answered: Answers.
        statuses: Requests that ended in an error, by status.
        held_s: Time that the answered ones waited in the router, added up.
        input_tokens, output_tokens: Tokens of the answers.
        energy_j: Active energy attributed to them.
        marginal_j: Energy that they have added; what is attributed, where that is not known.
        carbon_gco2e: Carbon of the active energy, as far as the intensity was known.
    """

    answered: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    held_s: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    energy_j: float = 0.0
    marginal_j: float = 0.0
    carbon_gco2e: float = 0.0

    @property
    def ended(self) -> int:
        """Requests that ended in an error."""
        return sum(list(self.statuses.values()))  # a copy: another thread scrapes

    def answer(self, receipt: Receipt) -> None:
        """Count an answer."""
        self.answered += 1
        self.held_s += receipt.queue_s
        cost = receipt.cost
        if cost is None:
            return
        marginal_j = receipt.marginal_energy_j
        self.energy_j += cost.energy_j
        self.marginal_j += cost.energy_j if marginal_j is None else marginal_j
        self.carbon_gco2e += receipt.carbon_gco2e or 0.0
        if cost.usage is not None:
            self.input_tokens += cost.usage.input_tokens
            self.output_tokens += cost.usage.output_tokens

    def failure(self, status: str) -> None:
        """Count a request that ended in an error."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
