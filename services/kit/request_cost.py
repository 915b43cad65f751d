"""Cost of a request: workers report it to routers, routers state it in receipts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

ENERGY_ERRORS: Final[Mapping[str, float]] = {
    "counter": 0.05,
    "rapl": 0.05,
    "integrated": 0.4,
    "model": 0.25,
}
"""Half-width of energy's 95 % interval by method, as a share; all that one meter says errs alike,
so that the sum of its receipts has the same share.

counter: NVML states 5 %, which Yang, Adamek and Armour ("Accurate and Convenient Energy
Measurements for GPUs", SC'24) found on most boards; rapl: taken to be as good. integrated: the
worst that was reported (ml-energy/zeus, issue 181). model: the analytic profile against published
batches (docs/measurements/analytic-profile.md).
"""


class Usage(NamedTuple):
    """Tokens of a request for text.

    Attributes:
        input_tokens: Tokens of the prompt.
        output_tokens: Tokens generated, the one that ends the text included.
        first_token_s: From the arrival at the router to the first token, s; 0: there was none, or
            the answer came at once.
        token_s: Mean time between tokens after that, s; 0: there were fewer than two. Of an answer
            that came at once: its time divided by its tokens.
        cached_tokens: Of the prompt's, those that the server had cached.
    """

    input_tokens: int
    output_tokens: int
    first_token_s: float
    token_s: float
    cached_tokens: int = 0


@dataclass(slots=True)
class Cost:
    """Resources that a request used in its worker.

    Attributes:
        energy_j: Its share of its batch's active energy, J.
        idle_energy_j: Its share of the idle energy from the end of the batch before to its own, J.
        method: How energy_j was obtained.
        queue_s: Waiting time in the worker, s.
        compute_s: Execution time of its batch, s.
        batch_size: Items in the batch, >= 1.
        items: Items of the request itself.
        usage: Tokens, where the model generates text.
    """

    energy_j: float
    idle_energy_j: float
    method: str
    queue_s: float
    compute_s: float
    batch_size: int
    items: int = 1
    usage: Usage | None = None

    @property
    def output_tokens(self) -> int:
        """Tokens generated; 0: the model does not generate text."""
        return self.usage.output_tokens if self.usage else 0
