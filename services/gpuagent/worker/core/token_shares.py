"""Who pays for what a device spends while it works for several at a time: by tokens.

A step of continuous batching gives each request that is being decoded one token, and takes in
some tokens of a prompt. So between two looks at the device, a request's part is its part of the
tokens, of its prompt or of its answer; a token is a token, whichever way it went.
"""

from collections.abc import Hashable


class Shares:
    """Divides energy among requests; the parts add up to what was spent."""

    def __init__(self) -> None:
        self._energy_j: dict[Hashable, float] = {}
        self._tokens: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._energy_j)

    def join(self, who: Hashable) -> None:
        """Charge a request from now on."""
        self._energy_j[who] = 0.0

    def count(self, who: Hashable, tokens: int) -> None:
        """Note tokens that a request took since energy was spent last."""
        self._tokens[who] = self._tokens.get(who, 0) + tokens

    def spend(self, energy_j: float) -> None:
        """Divide energy by the tokens counted since the last time; equally where there were none.

        At least one request must have joined.
        """
        tokens = {who: self._tokens.get(who, 0) for who in self._energy_j}
        total = sum(tokens.values())
        for who, own in tokens.items():
            self._energy_j[who] += energy_j * (own / total if total else 1 / len(tokens))
        self._tokens.clear()

    def leave(self, who: Hashable) -> float:
        """Stop charging a request; return its energy, J."""
        return self._energy_j.pop(who)
