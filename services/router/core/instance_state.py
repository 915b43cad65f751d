"""One instance as its model's dispatcher sees it."""

from dataclasses import dataclass, field

from services.router.core.deferrable.headroom import Headroom
from services.router.core.held_work import HeldWork
from services.router.core.latency_estimator import LatencyEstimator
from services.router.core.model import Instance
from services.router.core.pending_request import PendingRequest
from services.router.core.prefix_cache import PrefixCache
from services.router.core.token_times import Held, TokenTimes

_LENGTH_WEIGHT = 1 / 64  # of the newest length


@dataclass(slots=True, eq=False)
class InstanceState:
    """An instance's credits and the requests it holds.

    Attributes:
        instance: As in the newest routing table that has it.
        credits: Requests it may hold; 0 until its worker said hello.
        in_batches: It runs requests together, so that as many again may wait for the next batch.
        kv_tokens_per_credit: Tokens of prompts and answers for which its model's KV cache has room,
            per credit; 0: not stated.
        server: Address of its model's server, where that is not its own; "": it is, or none.
        adapters: Adapters of its model that it has loaded.
        up: The worker said hello and its stream is open.
        lost: Its stream broke, or could not be opened, and has not been open since.
        draining: The worker takes no more requests.
        leaving: It has left the routing table.
        in_flight: Requests that it holds, by number; each takes a credit.
        deferrable: Of these, those that can wait.
        headroom: Deferrable requests that it may hold beside the others.
        work: Their sums, where the instance choice depends on prompts.
        used_at: Counter value of its last event, for "idle longest".
        weight: Its weight in smooth weighted round robin.
        answered: Requests it answered.
        heard_s: Time of its last answer, or part of one.
        refuses_until_s: Time until which others go first: it refused a request.
        others: Requests of others that its server has, as its metrics say.
        full_until_s: Time until which others go first: its server has a long queue.
        latency: Estimate of its latency.
        usual_tokens: Running mean of the lengths of its texts, tokens; 0: it generated none.
        prefixes: Prompts sent to it, where the instance choice is "prefix".
        token_times: Times of its tokens, where the instance choice is "consolidated".
    """

    instance: Instance
    credits: int = 0
    in_batches: bool = False
    kv_tokens_per_credit: int = 0
    server: str = ""
    adapters: frozenset[str] = frozenset()
    up: bool = False
    lost: bool = False
    draining: bool = False
    leaving: bool = False
    in_flight: dict[int, PendingRequest] = field(default_factory=dict)
    deferrable: int = 0
    headroom: Headroom = field(default_factory=Headroom)
    work: HeldWork = field(default_factory=HeldWork)
    used_at: int = 0
    weight: float = 0.0
    answered: int = 0
    heard_s: float = 0.0
    refuses_until_s: float = 0.0
    others: int = 0
    full_until_s: float = 0.0
    latency: LatencyEstimator = field(default_factory=LatencyEstimator)
    usual_tokens: float = 0.0
    prefixes: PrefixCache = field(default_factory=PrefixCache)
    token_times: TokenTimes = field(default_factory=TokenTimes)

    def hold(self, pending: PendingRequest, *, counted: bool) -> None:
        """Assign a request to it, counted in the sums or not."""
        self.in_flight[pending.request.number] = pending
        self.deferrable += pending.request.deferrable
        if counted:
            self.work.add(pending)

    def release(self, number: int) -> PendingRequest | None:
        """Remove a request and return it; None: it held none of the number."""
        pending = self.in_flight.pop(number, None)
        if pending is not None:
            self.deferrable -= pending.request.deferrable
            if pending.holders:
                self.work.remove(pending)
        return pending

    def learn_length(self, output_tokens: int) -> None:
        """Update the usual length with that of a generated text."""
        if not self.usual_tokens:
            self.usual_tokens = float(output_tokens)
        self.usual_tokens += _LENGTH_WEIGHT * (output_tokens - self.usual_tokens)
        self.work.expect(self.usual_tokens)

    def with_one_more(self, body_bytes: int) -> Held:
        """Return the work that it would hold with one more request of so many bytes."""
        return Held(self.interactive + 1, body_bytes + self.work.unanswered_bytes)

    def has_tokens_for(self, pending: PendingRequest, reserved: int = 0) -> bool:
        """Estimate whether its KV cache has room for one more text, and for so many others.

        A text that alone needs more than there is goes to an instance that holds none: that
        instance's server knows better.
        """
        if not self.kv_tokens_per_credit or not self.in_flight:
            return True
        tokens = self.work.kv_tokens + pending.kv_tokens(self.work.usual_tokens)
        return tokens <= self.kv_tokens_per_credit * (self.credits - reserved)

    @property
    def takes_requests(self) -> bool:
        """True if it may be given requests while it has credits."""
        return self.up and not (self.draining or self.leaving)

    @property
    def interactive(self) -> int:
        """Requests that it holds and that cannot wait."""
        return len(self.in_flight) - self.deferrable

    @property
    def interactive_load(self) -> int:
        """Requests that cannot wait, its own and those of others at its server."""
        return len(self.in_flight) - self.deferrable + self.others

    @property
    def free(self) -> bool:
        """True if it has a credit left."""
        return len(self.in_flight) < self.credits

    @property
    def most(self) -> int:
        """Requests it may hold where no instance has a credit left: the next batch, too."""
        return 2 * self.credits if self.in_batches else self.credits

    @property
    def holds_suspect(self) -> bool:
        """True if it holds a request that another worker died with."""
        return any(pending.deaths for pending in self.in_flight.values())

    @property
    def share(self) -> float:
        """Its weight among others: the planned share, or 1 among instances without one."""
        return self.instance.share or 1.0
