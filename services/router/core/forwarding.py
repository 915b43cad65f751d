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
        if now_s >= self.until_s:
            return False
        most = max(1.0, self.rate_rps * _BURST_S)
        self.tokens = min(most, self.tokens + (now_s - self.filled_s) * self.rate_rps)
        self.filled_s = now_s
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


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
    """

    head: Head
    body: bytes
    remaining_s: float
    receiver: ResponseReceiver | None
    client: Callable[[], str] | None
    prefix: Callable[[], Sequence[int]] | None


@dataclass(slots=True, eq=False)
class Forwarding:
    """Chooses the region of each request.

    Attributes:
        conversations: Regions of conversations; this one is "".
    """

    conversations: Conversations = field(default_factory=Conversations)
    _buckets: dict[str, dict[str, _Bucket]] = field(default_factory=dict)
    _suspended_s: dict[str, float] = field(default_factory=dict)

    def use(self, rates: Iterable[Forward], now_s: float) -> None:
        """Replace all rates from now on; of each model the cleanest region comes first."""
        before, self._buckets = self._buckets, {}
        for rate in rates:
            known = before.get(rate.model, {}).get(rate.region)
            tokens, filled_s = (known.tokens, known.filled_s) if known else (0.0, now_s)
            until_s = now_s + min(rate.valid.total_seconds(), _MAX_VALID_S)
            bucket = _Bucket(rate.rate_rps, until_s, tokens, filled_s)
            self._buckets.setdefault(rate.model, {})[rate.region] = bucket

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
            rests = now_s < self._suspended_s.get(region, -math.inf)
            if region in reached and not rests and buckets[region].take(now_s):
                return region
        return ""

    def suspend(self, region: str, now_s: float) -> None:
        """Send nothing to a region that failed, for a while."""
        self._suspended_s[region] = now_s + _SUSPENDED_S
