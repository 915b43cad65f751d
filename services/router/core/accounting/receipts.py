"""The receipt of a request: its cost, in the answer's parameters and as trailing metadata."""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from services.kit.request_cost import Cost, Usage
from services.kit.units import J_PER_KWH
from services.router.core.model import Instance
from services.router.core.wire import (
    before_double,
    double_parameter,
    integer_parameter,
    string_parameter,
)

Intensity = Callable[[str], float | None]
"""From a zone to its carbon intensity now, gCO2e/kWh; None where it is not known."""

WAITED = "cinquefoil-waited-s"
ENERGY = "cinquefoil-energy-j"
CARBON = "cinquefoil-carbon-gco2e"

Trailers = tuple[tuple[str, str], ...]


class Answer(NamedTuple):
    """The answer to the caller: a serialized response, and trailing metadata."""

    body: bytes
    trailers: Trailers


class Carbon(NamedTuple):
    """Carbon of a request, gCO2e.

    Attributes:
        active: Of its active energy, which would not have been spent without it.
        total: Of its share of the idle energy, too.
    """

    active: float
    total: float


def priced(instance: Instance, cost: Cost, intensity: Intensity) -> Carbon | None:
    """Return the carbon of a cost where it was used, PUE included; None: no intensity is known."""
    known = intensity(instance.zone)
    if known is None:
        return None
    g_per_j = known * instance.pue / J_PER_KWH
    return Carbon(g_per_j * cost.energy_j, g_per_j * (cost.energy_j + cost.idle_energy_j))


_ENERGY, _IDLE, _CARBON, _TOTAL = map(
    before_double, ("energy_j", "energy_idle_j", "carbon_gco2e", "carbon_total_gco2e")
)
_CARBON_UNKNOWN = string_parameter("carbon_status", "unknown")
_UNPRICED = Struct(f"<{len(_ENERGY)}sd{len(_IDLE)}sd")
_PRICED = Struct(f"{_UNPRICED.format}{len(_CARBON)}sd{len(_TOTAL)}sd")


@lru_cache(maxsize=1024)
def variant_parameters(variant: str, accuracy: float) -> bytes:
    """Return the parameters that every answer of a variant has, with or without a cost."""
    return string_parameter("model_variant", variant) + double_parameter("accuracy", accuracy)


class Receipts:
    """Serializes the receipts of one variant's answers: all but the numbers is prepared once.

    Attributes:
        accuracy: Stated accuracy of the variant.
    """

    def __init__(self, variant: str, accuracy: float) -> None:
        self.accuracy = accuracy
        self._base = variant_parameters(variant, accuracy)
        self._variant = ("cinquefoil-variant", variant)
        self._methods: dict[str, bytes] = {}

    def add(self, response: bytes, cost: Cost | None, carbon: Carbon | None) -> Answer:
        """Return a serialized ModelInferResponse with its receipt.

        Args:
            response: The response.
            cost: Cost that the worker reported, if it did.
            carbon: Its carbon; None: not known.
        """
        if cost is None:
            return Answer(response + self._base, (self._variant,))
        receipt = self._methods.get(cost.method) or self._fixed(cost.method)
        if cost.usage is not None:
            receipt += tokens(cost, cost.usage, carbon)
        energy_j, idle_energy_j = cost.energy_j, cost.idle_energy_j
        if carbon is None:
            receipt += _UNPRICED.pack(_ENERGY, energy_j, _IDLE, idle_energy_j) + _CARBON_UNKNOWN
        else:
            receipt += _PRICED.pack(
                _ENERGY,
                energy_j,
                _IDLE,
                idle_energy_j,
                _CARBON,
                carbon.active,
                _TOTAL,
                carbon.total,
            )
        return Answer(response + receipt, (self._variant, *cost_trailers(cost, carbon)))

    def _fixed(self, method: str) -> bytes:
        known = self._base + string_parameter("energy_method", method)
        if len(self._methods) < 16:  # text from a worker: it must not fill memory
            self._methods[method] = known
        return known


def tokens(cost: Cost, usage: Usage, carbon: Carbon | None) -> bytes:
    """Return the parameters of a text: number of tokens, times, and cost per token generated.

    Both costs are stated: a token's active energy is what it adds, and with the idle energy of a
    replica that few texts share it may be several times as much.

    Args:
        cost: Cost of the request.
        usage: Tokens of the request.
        carbon: Its carbon; None: not known.
    """
    found = integer_parameter("input_tokens", usage.input_tokens)
    found += integer_parameter("output_tokens", usage.output_tokens)
    if usage.cached_tokens:
        found += integer_parameter("cached_tokens", usage.cached_tokens)
    output = usage.output_tokens
    if not output:
        return found
    if usage.first_token_s:
        found += double_parameter("first_token_s", usage.first_token_s)
        found += double_parameter("token_s", usage.token_s)
    total_j = cost.energy_j + cost.idle_energy_j
    found += double_parameter("energy_active_j_per_token", cost.energy_j / output)
    found += double_parameter("energy_total_j_per_token", total_j / output)
    if carbon is not None:
        found += double_parameter("carbon_active_gco2e_per_token", carbon.active / output)
        found += double_parameter("carbon_total_gco2e_per_token", carbon.total / output)
    return found


_CLASS = string_parameter("class", "waiting")


def with_waiting(answer: Answer, waited_s: float, marginal_j: float | None) -> Answer:
    """Return the answer to a request that could wait with what its receipt has more.

    Args:
        answer: With its receipt.
        waited_s: Time that it waited, s.
        marginal_j: Energy that it added, J; None: not known yet.
    """
    body = answer.body + _CLASS + double_parameter("waited_s", waited_s)
    trailers: Trailers = (("cinquefoil-class", "waiting"), (WAITED, f"{waited_s:.6f}"))
    if marginal_j is not None:
        body += double_parameter("energy_marginal_j", marginal_j)
        trailers += (("cinquefoil-marginal-energy-j", f"{marginal_j:.9g}"),)
    return Answer(body, (*answer.trailers, *trailers))


def cost_trailers(cost: Cost, carbon: Carbon | None) -> Trailers:
    """Return energy and carbon as trailing metadata, without the variant."""
    energy = (ENERGY, f"{cost.energy_j:.9g}")
    if carbon is None:
        return (energy,)
    return (energy, (CARBON, f"{carbon.active:.9g}"))
