"""Tokens of texts: their times, and their shares of energy."""

from collections.abc import Hashable
from typing import NamedTuple

from services.kit.config import Slo
from services.kit.request_cost import Usage


def binding_latency_s(slo: Slo, latency_s: float, usage: Usage) -> float:
    """Return the latency that uses as much of its objective as was used of the scarcest.

    So one count of latencies says how near a text came to any of its objectives.

    Args:
        slo: Objective of its model's requests.
        latency_s: Of the whole text, s.
        usage: When its tokens came.
    """
    if not usage.first_token_s:  # it came at once
        return latency_s
    first = usage.first_token_s / slo.ttft_s if slo.ttft_s else 0.0
    between = usage.token_s / slo.tpot_s if slo.tpot_s else 0.0
    return max(latency_s, slo.latency_s * max(first, between))


class TextTokens:
    """Counts the tokens of one answer, response by response; times are of one monotonic clock, s.

    Source: Triton's vLLM backend, "Additional Outputs from vLLM" (`num_input_tokens`: of the
    prompt; `num_output_tokens`: generated since the response before).
    """

    def __init__(self) -> None:
        self._input = self._output = self._first = 0
        self._first_s = self._last_s = 0.0

    def add(self, output_tokens: int, now_s: float, *, input_tokens: int = 0) -> None:
        """Take a response.

        Args:
            output_tokens: Tokens that it brings; < 0: those before it were counted too high.
            now_s: When it came.
            input_tokens: Tokens of the prompt; 0: it does not say.
        """
        self._input = input_tokens or self._input
        if output_tokens > 0:
            self._last_s = now_s
            if not self._output:
                self._first, self._first_s = output_tokens, now_s
        self._output += output_tokens

    def usage(self, came_s: float) -> Usage | None:
        """Return the tokens and their times; None: there was no text.

        Args:
            came_s: When the request came to its router.
        """
        if not self._output:
            return None
        between = self._output - self._first
        token_s = (self._last_s - self._first_s) / between if between > 0 else 0.0
        return Usage(self._input, self._output, self._first_s - came_s, token_s)


class Spent(NamedTuple):
    """Energy of a request. Attributes: active_j, idle_j."""

    active_j: float
    idle_j: float


class Shares:
    """Divides a device's energy, active and idle, among the requests of a time, by tokens.

    A step of continuous batching gives each request that is being decoded one token, and takes in
    some tokens of a prompt. So between two looks at the device, a request's part is its part of
    the tokens, of its prompt or of its answer; a token is a token, whichever way it went. The
    parts add up to what was spent.
    """

    def __init__(self) -> None:
        self._spent: dict[Hashable, Spent] = {}
        self._tokens: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._spent)

    def join(self, who: Hashable, idle_j: float = 0.0) -> None:
        """Charge a request from now on; `idle_j` was spent waiting for it."""
        self._spent[who] = Spent(0.0, idle_j)

    def count(self, who: Hashable, tokens: int) -> None:
        """Note tokens that a request took since energy was spent last."""
        self._tokens[who] = self._tokens.get(who, 0) + tokens

    def spend(self, active_j: float, idle_j: float = 0.0) -> None:
        """Divide energy by the tokens counted since the last time; equally where there were none.

        At least one request must have joined.
        """
        tokens = {who: self._tokens.get(who, 0) for who in self._spent}
        total = sum(tokens.values())
        for who, own in tokens.items():
            share, before = own / total if total else 1 / len(tokens), self._spent[who]
            self._spent[who] = Spent(
                before.active_j + share * active_j, before.idle_j + share * idle_j
            )
        self._tokens.clear()

    def leave(self, who: Hashable) -> Spent:
        """Stop charging a request; return its energy."""
        return self._spent.pop(who)
