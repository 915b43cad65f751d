"""Division of a worker's credits among the routers' streams.

Routers share no memory; the worker is where they meet. A stream's part follows its demand: the
mean number of its requests that are in flight here or wait at its router. The first part is
counted; the second follows from how long each request says that it waited (Little's law,
L = lambda W: J. D. C. Little, Operations Research 9(3), 1961). So two routers under one overload
get credits in proportion to their queues, and what an idle one does not use the busy one has.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from services.kit.errors import InvalidArgument

MEMORY_S: Final = 1.0
"""Time constant of the mean, s."""

PERIOD_S: Final = 0.1
"""Least time between two divisions while no stream comes or goes, s."""

_WORTH: Final = 1.5
"""Difference of two streams' lacks above which a credit moves. At 1, rounding would flap."""


@dataclass(slots=True, eq=False)
class Share:
    """One stream's part.

    Attributes:
        credits: Requests that may be in flight on it, >= 1.
        in_flight: Requests that are.
        demand: Mean number of its requests in flight or waiting at its router.
    """

    credits: int = 1
    in_flight: int = 0
    demand: float = 0.0


def quotas(total: int, demands: Sequence[float]) -> tuple[float, ...]:
    """Divide credits in proportion to demands; what no stream wants is divided equally.

    Args:
        total: Credits, >= 1.
        demands: One per stream, >= 0.

    Returns:
        Parts >= 1, in sum `total`, or one each where there are more streams than credits.
    """
    count = len(demands)
    if total <= count:
        return (1.0,) * count
    wanted = math.fsum(demands)
    scale, spare = (total / wanted, 0.0) if wanted > total else (1.0, (total - wanted) / count)
    above_one = [max(demand * scale + spare - 1.0, 0.0) for demand in demands]
    rest = (total - count) / math.fsum(above_one)
    return tuple(1.0 + above * rest for above in above_one)


class Credits:
    """Divides credits among the streams that are open. Times are monotonic seconds.

    At most a quarter of the credits moves at a time: while word of it is on its way a stream may
    still use what it had, so for so long a worker may hold that much more than its credits.

    Args:
        total: Credits of the worker, >= 1.

    Attributes:
        due_s: When `divide` may change a share.
    """

    def __init__(self, total: int) -> None:
        if total < 1:
            raise InvalidArgument(f"total must be >= 1, got {total}")
        self.total = total
        self._shares: list[Share] = []
        self._counted_s = 0.0
        self.due_s = math.inf

    def open(self, now_s: float) -> Share:
        """Begin a stream, and make room for it."""
        self._count(now_s)
        share = Share()
        self._shares.append(share)
        self._divide(now_s)
        return share

    def close(self, share: Share, now_s: float) -> None:
        """End a stream, and hand its credits on."""
        self._count(now_s)
        self._shares.remove(share)
        self._divide(now_s)

    def take(self, share: Share, waited_s: float, now_s: float) -> None:
        """Count a request in, `waited_s` after it came to its router."""
        if now_s > self._counted_s:
            self._count(now_s)
        share.in_flight += 1
        share.demand += max(waited_s, 0.0) / MEMORY_S

    def give_back(self, share: Share, now_s: float) -> None:
        """Count a request out, which was answered."""
        if now_s > self._counted_s:
            self._count(now_s)
        share.in_flight -= 1

    def divide(self, now_s: float) -> bool:
        """Divide again when that is due; return whether a share changed."""
        if now_s < self.due_s:
            return False
        self._count(now_s)
        return self._divide(now_s)

    def _count(self, now_s: float) -> None:
        """Bring every mean up to now."""
        if now_s <= self._counted_s:
            return
        keep = math.exp((self._counted_s - now_s) / MEMORY_S)
        self._counted_s = now_s
        for share in self._shares:
            share.demand = keep * share.demand + (1.0 - keep) * share.in_flight

    def _divide(self, now_s: float) -> bool:
        """Move credits one by one, from the stream with most excess to the one that lacks most."""
        shares = self._shares
        self.due_s = math.inf if len(shares) < 2 else now_s + PERIOD_S
        if not shares:
            return False
        before = [share.credits for share in shares]
        wanted = quotas(self.total, [share.demand for share in shares])
        lacks = {share: quota - share.credits for share, quota in zip(shares, wanted, strict=True)}
        free = max(self.total, len(shares)) - sum(before)
        for _ in range(abs(free) + max(self.total // 4, 1)):
            taker, giver = max(shares, key=lacks.__getitem__), min(shares, key=lacks.__getitem__)
            if free == 0 and lacks[taker] - lacks[giver] <= _WORTH:
                break
            if free >= 0:
                taker.credits += 1
                lacks[taker] -= 1.0
            if free <= 0:
                giver.credits -= 1
                lacks[giver] += 1.0
            free -= (free > 0) - (free < 0)
        return [share.credits for share in shares] != before
