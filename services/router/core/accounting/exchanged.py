"""Counts of requests between this region and its peers."""

from dataclasses import dataclass, field

from services.router.core.accounting.receipts import CARBON, ENERGY, Answer


@dataclass(slots=True)
class Answered:
    """Sums of receipts. Attributes: requests, energy_j (active), carbon_gco2e."""

    requests: int = 0
    energy_j: float = 0.0
    carbon_gco2e: float = 0.0

    def add(self, answer: Answer) -> None:
        """Count an answer."""
        self.requests += 1
        for name, value in answer.trailers:
            if name == ENERGY:
                self.energy_j += float(value)
            elif name == CARBON:
                self.carbon_gco2e += float(value)


@dataclass(slots=True)
class Exchanged:
    """Requests between this region and a peer since they were last taken, of one model.

    Attributes:
        sent: Answered by the peer.
        sent_waiting: Of these, requests that could wait.
        answered: Of the peer's clients, answered here.
        received: Requests of the peer's clients that came.
        returned: Requests that the peer failed to answer.
    """

    sent: Answered = field(default_factory=Answered)
    answered: Answered = field(default_factory=Answered)
    sent_waiting: int = 0
    received: int = 0
    returned: int = 0
