"""GPUs that batch continuously, by the profile of language models."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final

from benchmarks._fleets import gpu_type
from services.kit.profiles.core.clock_curve import curve_of
from services.kit.profiles.core.language import LanguageProfile
from services.planner.core.model import Pool
from services.planner.core.problem import catalog
from services.router.core.prefix_cache import PrefixCache

CLOCKS: Final = (0.6, 0.7, 0.8, 0.9, 1.0)
INTENSITY_G_PER_KWH: Final = 300.0
PROFILE: Final = LanguageProfile(8.0)
POOL: Final = Pool(gpu_type("h100-80gb"), "", 1.0, INTENSITY_G_PER_KWH)
SLOTS: Final = 256
KV_TOKENS: Final = 400_000
"""Tokens of context that fit beside the weights: 128 KiB each (Llama 3 8B, 16 bit) in 52 GB."""
BLOCK_TOKENS: Final = 512  # of Mooncake's trace
CLOCK_PERIOD_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """The objective of a trace. Attributes: ttft_s, tpot_s."""

    ttft_s: float
    tpot_s: float


@dataclass(slots=True)
class Request:
    """A request of a trace.

    Attributes: times in s since the trace's start, 0: not yet; names of its prompt's blocks.
    """

    arrived_s: float
    input_tokens: int
    output_tokens: int
    first_s: float = 0.0
    ended_s: float = 0.0
    blocks: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens of its prompt and its answer."""
        return self.input_tokens + self.output_tokens

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.first_s - self.arrived_s

    @property
    def tpot_s(self) -> float:
        """Mean time between tokens."""
        return (self.ended_s - self.first_s) / max(self.output_tokens - 1, 1)

    def keeps(self, limits: Limits) -> bool:
        """Return whether it met its objective."""
        return self.ttft_s <= limits.ttft_s and self.tpot_s <= limits.tpot_s


class Engine:
    """The profile: what a step of one GPU takes and draws.

    Args:
        profile: The model's.
        pool: Of the GPU's type.
    """

    def __init__(self, profile: LanguageProfile = PROFILE, pool: Pool = POOL) -> None:
        self.shape = pool.type.shape(catalog.whole(pool))
        self.profile = profile
        curve = curve_of(self.shape.gpu)
        self._ratios = {
            clock: (
                curve.stretch(profile.decode_sensitivity, clock),
                curve.stretch(profile.prefill_sensitivity, clock),
                curve.power_ratio(clock),
            )
            for clock in CLOCKS
        }

    def step(
        self, clock: float, sequences: float, context: float, prompt: float
    ) -> tuple[float, float]:
        """Return the time of a step, s, and its active energy, J; `context` is each answer's."""
        decode, prefill, power = self._ratios[clock]
        fast_s = self.profile.step_s(self.shape, sequences, context)
        whole_s = self.profile.step_s(self.shape, sequences, context, prompt)
        time_s = fast_s * decode + (whole_s - fast_s) * prefill
        power_w = self.profile.step_power_w(self.shape, sequences, context, prompt, step_s=whole_s)
        return time_s, power_w * power * time_s


@dataclass(slots=True)
class Waiting:
    """A prompt that was not yet computed. Attributes: request, tokens left of its prompt."""

    request: Request
    left: int


@dataclass(slots=True, eq=False)
class Replica:
    """One GPU with continuous batching; prompts are taken in in order, by chunks.

    Attributes:
        engine: Its GPU.
        clock_at: Returns the clock of its next step, over the highest, at a time.
        chunk: Tokens of prompts that a step takes in at most.
        cache: Prefixes that need not be computed again.
        kept: Tokens of context that its requests will need.
        cached: Tokens of prompts that were not computed.
    """

    engine: Engine
    clock_at: Callable[[Replica, float], float]
    chunk: int = 512
    cache: PrefixCache | None = None
    waiting: deque[Waiting] = field(default_factory=deque)
    waiting_tokens: int = 0
    open: list[tuple[int, int, Request]] = field(default_factory=list)  # by the step that ends it
    context: float = 0.0  # of all open answers together
    kept: int = 0  # of those that are open or were begun
    steps: int = 0
    active_j: float = 0.0
    begun: list[Request] = field(default_factory=list)
    busy: bool = False
    number: int = 0
    cached: int = 0
    clock: float = 0.0
    clock_until_s: float = 0.0

    @property
    def requests(self) -> int:
        """Requests that it has."""
        return len(self.waiting) + len(self.open) + len(self.begun)

    @property
    def mean_context(self) -> float:
        """Tokens of an open answer's context."""
        return self.context / len(self.open) if self.open else 0.0

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(Waiting(request, request.input_tokens))
        self.waiting_tokens += request.input_tokens

    def begin(self, now_s: float) -> float:
        """Begin a step; return when it ends."""
        left = self.chunk
        while self.waiting and left and self._fits(self.waiting[0].request):
            first = self.waiting[0]
            self._reuse(first)
            taken = min(first.left, left)
            first.left -= taken
            self.waiting_tokens -= taken
            left -= taken
            if not first.left:
                self.waiting.popleft()
                self.begun.append(first.request)
                self.kept += first.request.tokens
        if now_s >= self.clock_until_s:
            self.clock, self.clock_until_s = self.clock_at(self, now_s), now_s + CLOCK_PERIOD_S
        time_s, energy_j = self.engine.step(
            self.clock, len(self.open), self.mean_context, self.chunk - left
        )
        self.active_j += energy_j
        self.busy = True
        return now_s + time_s

    def _fits(self, request: Request) -> bool:
        count = len(self.open) + len(self.begun)
        return count < SLOTS and (not count or self.kept + request.tokens <= KV_TOKENS)

    def _reuse(self, first: Waiting) -> None:
        """Take from a prompt that begins what is cached; the last token is always computed."""
        request = first.request
        if self.cache is not None and first.left == request.input_tokens:
            found = min(self.cache.matched(request.blocks) * BLOCK_TOKENS, first.left - 1)
            first.left -= found
            self.waiting_tokens -= found
            self.cached += found

    def end(self, now_s: float) -> None:
        """End the step: every open answer has one token more."""
        self.steps += 1
        self.context += len(self.open)
        while self.open and self.open[0][0] <= self.steps:
            _, _, request = heappop(self.open)
            request.ended_s = now_s
            self.context -= request.tokens
            self.kept -= request.tokens
        for request in self.begun:  # the prompt's last step gives the first token
            request.first_s = now_s
            if self.cache is not None:
                self.cache.add(request.blocks)
            if request.output_tokens <= 1:
                request.ended_s = now_s
                self.kept -= request.tokens
                continue
            self.number += 1
            self.context += request.input_tokens + 1
            heappush(self.open, (self.steps + request.output_tokens - 1, self.number, request))
        self.begun.clear()
        self.busy = False


Choose = Callable[[Sequence[Replica], Request, int], Replica]
"""Returns the replica of a request that arrives, the trace's so-manieth."""


def serve(requests: Sequence[Request], replicas: Sequence[Replica], choose: Choose) -> float:
    """Serve a trace; return when the last answer ended, s."""
    index_of = {id(replica): index for index, replica in enumerate(replicas)}
    ends: list[tuple[float, int]] = []
    now_s, coming = 0.0, 0
    while coming < len(requests) or ends:
        if coming < len(requests) and (not ends or requests[coming].arrived_s <= ends[0][0]):
            request, now_s = requests[coming], requests[coming].arrived_s
            replica = choose(replicas, request, coming)
            replica.add(request)
            coming += 1
        else:
            now_s, index = heappop(ends)
            replica = replicas[index]
            replica.end(now_s)
        if not replica.busy and replica.requests:
            heappush(ends, (replica.begin(now_s), index_of[id(replica)]))
    return now_s
