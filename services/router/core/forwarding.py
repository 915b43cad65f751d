"""Requests that leave for peer regions: within the rates that the planner gives, cleanest first."""

import math
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cinquefoil.planner.v1.records import Forward
from services.router.core.model import ResponseReceiver
from services.router.core.prefix_cache import length_of
from services.router.core.wire import Head

_BURST_S: Final = 0.5
"""Time whose requests may leave at once, s."""

_MAX_VALID_S: Final = 30.0
"""Longest time for which a rate is used without a new one, s."""

_SUSPENDED_S: Final = 5.0
"""Time for which a region that failed gets nothing, s."""

_MAX_CONVERSATIONS: Final = 65_536

_WORTH_KEEPING: Final = 0.5
"""Of a prompt, that a region must have cached for the conversation to stay there: to compute less
than the new part again costs less than a cleaner region saves."""


@dataclass(slots=True)
class _Bucket:
    """Tokens of one region and model: a request takes one."""

    rate_rps: float
    until_s: float
    tokens: float
    filled_s: float

    def take(self, now_s: float) -> bool:
        """Take a token; False: there is none, or the rate has expired."""
        if self.left(now_s) < 1:
            return False
        self.tokens -= 1
        return True

    def left(self, now_s: float) -> float:
        """Return the tokens that are left; 0: the rate has expired."""
        if now_s >= self.until_s:
            return 0.0
        most = max(1.0, self.rate_rps * _BURST_S)
        self.tokens = min(most, self.tokens + (now_s - self.filled_s) * self.rate_rps)
        self.filled_s = now_s
        return self.tokens


class Conversations:
    """The region of each conversation, known by the end of its last prompt.

    A conversation goes on with a prompt that extends the last one. Each end counts once: a system
    prompt that many conversations share ties none of them to a region.
    """

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends: OrderedDict[tuple[str, int], str] = OrderedDict()

    def region(self, model: str, blocks: Sequence[int]) -> str | None:
        """Return where most of a prompt is cached; None: nowhere.

        Args:
            model: The model.
            blocks: Names of the prompt's blocks, `prefix_cache.chain`.
        """
        for known in range(len(blocks) - 1, 0, -1):
            if length_of(known) < _WORTH_KEEPING * length_of(len(blocks)):
                return None
            found = self._ends.pop((model, blocks[known - 1]), None)
            if found is not None:
                return found
        return None

    def keep(self, model: str, blocks: Sequence[int], region: str) -> None:
        """Note where a prompt went."""
        if blocks:
            self._ends[model, blocks[-1]] = region
            self._ends.move_to_end((model, blocks[-1]))
            if len(self._ends) > _MAX_CONVERSATIONS:
                self._ends.popitem(last=False)


class Outgoing(NamedTuple):
    """A request that may leave.

    Attributes:
        head: Its head.
        body: All of it, serialized.
        remaining_s: Its time limit.
        receiver: Takes responses before the last; None: the caller wants a single one.
        client: Returns the client's identity.
        prefix: Returns the names of its prompt's blocks; None: the prompt does not matter.
        can_wait: It is a request that can wait.
    """

    head: Head
    body: bytes
    remaining_s: float
    receiver: ResponseReceiver | None
    client: Callable[[], str] | None
    prefix: Callable[[], Sequence[int]] | None
    can_wait: bool = False


@dataclass(slots=True, eq=False)
class Forwarding:
    """Chooses the region of each request.

    Attributes:
        conversations: Regions of conversations; this one is "".
    """

    conversations: Conversations = field(default_factory=Conversations)
    _buckets: dict[str, dict[str, _Bucket]] = field(default_factory=dict)
    _waiting: dict[str, dict[str, _Bucket]] = field(default_factory=dict)
    _suspended_s: dict[str, float] = field(default_factory=dict)

    def use(self, rates: Sequence[Forward], now_s: float) -> None:
        """Replace all rates from now on; of each model the cleanest region comes first."""
        self._buckets = _refilled(self._buckets, ((each, each.rate_rps) for each in rates), now_s)
        self._waiting = _refilled(
            self._waiting, ((each, each.waiting_rps) for each in rates), now_s
        )

    @property
    def models_that_wait(self) -> Iterable[str]:
        """Models of which requests that can wait may leave."""
        return self._waiting.keys()

    def may_leave(self, model: str, now_s: float, reached: Container[str]) -> int:
        """Return how many requests of a model that can wait may leave now.

        Args:
            model: The model.
            now_s: Now, s.
            reached: Regions that answer.
        """
        return sum(
            int(bucket.left(now_s))
            for region, bucket in self._waiting.get(model, {}).items()
            if region in reached and not self._rests(region, now_s)
        )

    def choose_for_waiting(self, model: str, now_s: float, reached: Container[str]) -> str:
        """Return the region of the next request that can wait; "": this one.

        Arguments as of `may_leave`.
        """
        for region, bucket in self._waiting.get(model, {}).items():
            if region in reached and not self._rests(region, now_s) and bucket.take(now_s):
                return region
        return ""

    def choose(
        self, model: str, now_s: float, reached: Container[str], blocks: Sequence[int] = ()
    ) -> str:
        """Return the region that takes the next request of a model; "": this one.

        A conversation stays where its cache is, while that region takes it.

        Args:
            model: The model.
            now_s: Now, s.
            reached: Regions that answer.
            blocks: Names of the prompt's blocks; none: the prompt does not matter.
        """
        kept = self.conversations.region(model, blocks)
        buckets = self._buckets.get(model, {})
        order = ([kept] if kept in buckets else []) + [each for each in buckets if each != kept]
        for region in () if kept == "" else order:
            if region in reached and not self._rests(region, now_s) and buckets[region].take(now_s):
                return region
        return ""

    def _rests(self, region: str, now_s: float) -> bool:
        return now_s < self._suspended_s.get(region, -math.inf)

    def suspend(self, region: str, now_s: float) -> None:
        """Send nothing to a region that failed, for a while."""
        self._suspended_s[region] = now_s + _SUSPENDED_S


_Buckets = dict[str, dict[str, _Bucket]]


def _refilled(before: _Buckets, rates: Iterable[tuple[Forward, float]], now_s: float) -> _Buckets:
    """Return buckets of new rates; what was in those before is kept."""
    found: _Buckets = {}
    for each, rate_rps in rates:
        if rate_rps > 0:
            known = before.get(each.model, {}).get(each.region)
            tokens, filled_s = (known.tokens, known.filled_s) if known else (0.0, now_s)
            until_s = now_s + min(each.valid.total_seconds(), _MAX_VALID_S)
            bucket = _Bucket(rate_rps, until_s, tokens, filled_s)
            found.setdefault(each.model, {})[each.region] = bucket
    return found
