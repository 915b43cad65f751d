"""Watchers of receipts: a random share of the answers for each, kept until it is fetched.

Requests cost nothing here while there is no watcher.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from services.kit.errors import InvalidArgument, ResourceExhausted
from services.kit.request_cost import Cost
from services.router.core.model import Instance

MOST_WATCHERS: Final = 32
MOST_KEPT: Final = 256
"""Receipts that wait for a watcher; further ones are left out, and counted."""


class Receipt(NamedTuple):
    """Cost of one answer.

    Attributes:
        answered_s: When it was answered, s of monotonic time.
        instance: The instance that answered; of a pipeline that of the last stage.
        latency_s: From its arrival until it was answered, s.
        queue_s: Of that, waiting in the router and in the worker, s.
        cost: Cost that its worker reported; None: none.
        carbon_gco2e: Carbon of the active energy; None: not known.
        carbon_total_gco2e: Carbon of the idle energy, too; None: not known.
        waiting: It could wait.
        marginal_energy_j: Energy that it added, J; None: it could not wait, or that is not known.
    """

    answered_s: float
    instance: Instance
    latency_s: float
    queue_s: float
    cost: Cost | None
    carbon_gco2e: float | None
    carbon_total_gco2e: float | None = None
    waiting: bool = False
    marginal_energy_j: float | None = None


@dataclass(slots=True)
class Watcher:
    """A watcher.

    Attributes:
        sample: Share of the answers, > 0, <= 1.
        model: Answers of this model only; "": of every model.
        variant: Answers of this variant only; "": of every variant.
        left_out: Receipts that were not kept since the last `take`.
    """

    sample: float
    model: str = ""
    variant: str = ""
    left_out: int = 0
    _kept: deque[Receipt] = field(default_factory=deque)

    def offer(self, receipt: Receipt, random: float) -> None:
        """Keep a receipt that it wants, if `random`, 0..1, falls into its sample."""
        instance = receipt.instance
        if self.model not in ("", instance.model) or self.variant not in ("", instance.variant):
            return
        if random >= self.sample:
            return
        if len(self._kept) < MOST_KEPT:
            self._kept.append(receipt)
        else:
            self.left_out += 1

    def take(self) -> tuple[list[Receipt], int]:
        """Return the receipts since the last call, oldest first, and how many were left out."""
        found = list(self._kept), self.left_out
        self._kept.clear()
        self.left_out = 0
        return found


class ReceiptWatchers:
    """All watchers.

    Attributes:
        present: The watchers; empty: no receipt needs to be made.
    """

    def __init__(self, random: Callable[[], float]) -> None:
        """Sample with random numbers, 0 <= random() < 1."""
        self.present: list[Watcher] = []
        self._random = random

    @contextmanager
    def watching(self, sample: float, model: str = "", variant: str = "") -> Iterator[Watcher]:
        """Keep receipts for a watcher while the block runs; arguments as of `Watcher`.

        Raises:
            InvalidArgument: The sample is not a share.
            ResourceExhausted: Too many watch already.
        """
        if not 0 < sample <= 1:
            raise InvalidArgument.at("sample", f"must be > 0 and <= 1, got {sample:g}")
        if len(self.present) >= MOST_WATCHERS:
            raise ResourceExhausted(f"{MOST_WATCHERS} watch receipts already; close one of them")
        watcher = Watcher(sample, model, variant)
        self.present.append(watcher)
        try:
            yield watcher
        finally:
            self.present = [each for each in self.present if each is not watcher]

    def offer(self, receipt: Receipt) -> None:
        """Offer a receipt to every watcher."""
        for watcher in self.present:
            watcher.offer(receipt, self._random())
