"""A language model on a GPU that batches continuously, step by step, by its profile."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from services.kit.profiles.core.clock_curve import curve_of
from services.kit.profiles.core.language import LanguageProfile
from services.kit.profiles.core.profile import SliceShape
from services.kit.units import BYTES_PER_KIB
from services.router.core.prefix_cache import PrefixCache

CHUNK_TOKENS: Final = 512
BLOCK_TOKENS: Final = 512
"""Of a prompt's blocks, as in Mooncake's trace."""

_MEMORY_SHARE: Final = 0.9
"""Of a slice's memory for weights and contexts: vLLM's default `gpu_memory_utilization`."""


@dataclass(slots=True)
class Text:
    """A request for text.

    Attributes:
        arrived_s: Virtual time, s.
        input_tokens: Of its prompt.
        output_tokens: Of its answer.
        first_s, ended_s: When its first and its last token came; 0: not yet.
        blocks: Names of its prompt's blocks.
        number: Names it to its owner.
        deadline_s: When its caller stops waiting.
        energy_j: Its tokens' shares of the steps they were computed in, once it has ended, J.
    """

    arrived_s: float
    input_tokens: int
    output_tokens: int
    first_s: float = 0.0
    ended_s: float = 0.0
    blocks: tuple[int, ...] = ()
    number: int = 0
    deadline_s: float = math.inf
    energy_j: float = 0.0

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


class Step(NamedTuple):
    """A step of all answers. Attributes: time_s, energy_j (active)."""

    time_s: float
    energy_j: float


_NO_STEP: Final = Step(0.0, 0.0)


class StepCosts:
    """What a step takes and draws.

    Args:
        profile: The model's.
        shape: The slice, of a GPU type that the profile knows.
        slowdown: Time and energy over the profile's.
    """

    def __init__(self, profile: LanguageProfile, shape: SliceShape, slowdown: float = 1.0) -> None:
        self.shape = shape
        self.profile = profile
        self._slowdown = slowdown
        self._steps = profile.steps(shape)
        self._curve = curve_of(shape.gpu)
        self._ratios: dict[float, tuple[float, float, float]] = {}

    def step(self, clock: float, sequences: float, context: float, prompt: float) -> Step:
        """Return what a step takes.

        Args:
            clock: SM clock over the highest.
            sequences: Answers that get a token.
            context: Mean tokens of each of them.
            prompt: Tokens of prompts that are taken in.
        """
        decode, prefill, power = self._ratios.get(clock) or self._at(clock)
        steps = self._steps
        fast_s = steps.time_s(sequences, context)
        whole_s = steps.time_s(sequences, context, prompt) if prompt else fast_s
        time_s = fast_s * decode + (whole_s - fast_s) * prefill
        power_w = steps.power_w(sequences, context, prompt, whole_s)
        return Step(time_s * self._slowdown, power_w * power * time_s * self._slowdown)

    def _at(self, clock: float) -> tuple[float, float, float]:
        curve, profile = self._curve, self.profile
        self._ratios[clock] = found = (
            curve.stretch(profile.decode_sensitivity, clock),
            curve.stretch(profile.prefill_sensitivity, clock),
            curve.power_ratio(clock),
        )
        return found


def kv_tokens(profile: LanguageProfile, shape: SliceShape, processes: int = 1) -> int:
    """Return the tokens of context that fit beside the weights of one process, >= 1."""
    weights_bytes = profile.parameters_b * profile.bytes_per_parameter * 1e9
    free_bytes = _MEMORY_SHARE * shape.memory_bytes / processes - weights_bytes
    return max(int(free_bytes / (profile.kv_kib_per_token * BYTES_PER_KIB)), 1)


@dataclass(slots=True)
class Waiting:
    """A prompt that was not yet computed. Attributes: request, tokens left of its prompt."""

    request: Text
    left: int


class StepEnd(NamedTuple):
    """What a step brought. Attributes: first (whose first token came), ended (whose last did)."""

    first: list[Text]
    ended: list[Text]


@dataclass(slots=True, eq=False)
class Replica:
    """One process with continuous batching; prompts are taken in in order, by chunks.

    Attributes:
        engine: What its steps take.
        clock_at: Returns the clock of its next step, over the highest, at a time.
        slots: Answers that are generated at a time, at most.
        kv_tokens: Tokens of context that fit.
        chunk: Tokens of prompts that a step takes in at most.
        cache: Prefixes that need not be computed again.
        beside: Returns the answers that other processes of its slice generate meanwhile.
        context: Tokens of all open answers together.
        kept: Tokens of context that its requests will need, of those that are open or were begun.
        present: The step that runs, or ran last.
        active_j: Energy of all steps.
        cached: Tokens of prompts that were not computed.
    """

    engine: StepCosts
    clock_at: ClockAt
    slots: int
    kv_tokens: int
    chunk: int = CHUNK_TOKENS
    cache: PrefixCache | None = None
    beside: Callable[[], int] = lambda: 0
    waiting: deque[Waiting] = field(default_factory=deque)
    waiting_tokens: int = 0
    open: list[tuple[int, int, Text]] = field(default_factory=list)  # by the step that ends it
    context: float = 0.0
    kept: int = 0
    steps: int = 0
    present: Step = _NO_STEP
    active_j: float = 0.0
    begun: list[Text] = field(default_factory=list)
    busy: bool = False
    number: int = 0
    cached: int = 0
    _taken: list[tuple[Text, int]] = field(default_factory=list)  # tokens in this step
    _token_j: float = 0.0  # of an answer that was open in all steps

    @property
    def requests(self) -> int:
        """Requests that it has."""
        return len(self.waiting) + len(self.open) + len(self.begun)

    @property
    def mean_context(self) -> float:
        """Tokens of an open answer's context."""
        return self.context / len(self.open) if self.open else 0.0

    def add(self, request: Text) -> None:
        """Queue a request."""
        self.waiting.append(Waiting(request, request.input_tokens))
        self.waiting_tokens += request.input_tokens

    def drop(self, request: Text) -> None:
        """Forget a request that has not ended; only between steps."""
        waiting = next((each for each in self.waiting if each.request is request), None)
        if waiting is not None:
            self.waiting.remove(waiting)
            self.waiting_tokens -= waiting.left
            return
        entry = next(each for each in self.open if each[2] is request)
        self.open.remove(entry)
        heapify(self.open)
        self.context -= request.tokens - (entry[0] - self.steps)
        self.kept -= request.tokens
        request.energy_j += self._token_j

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
            self._taken.append((first.request, taken))
            if not first.left:
                self.waiting.popleft()
                self.begun.append(first.request)
                self.kept += first.request.tokens
        clock, own, others = self.clock_at(self, now_s), len(self.open), self.beside()
        step = self.engine.step(clock, own + others, self.mean_context, self.chunk - left)
        if others:  # processes share a slice's steps by their answers and prompts
            computed = own + self.chunk - left
            step = Step(step.time_s, step.energy_j * computed / (computed + others))
        self.present = step
        self.active_j += step.energy_j
        self.busy = True
        return now_s + step.time_s

    def _fits(self, request: Text) -> bool:
        count = len(self.open) + len(self.begun)
        return count < self.slots and (not count or self.kept + request.tokens <= self.kv_tokens)

    def _reuse(self, first: Waiting) -> None:
        """Take from a prompt that begins what is cached; the last token is always computed."""
        request = first.request
        if self.cache is not None and first.left == request.input_tokens:
            found = min(self.cache.matched(request.blocks) * BLOCK_TOKENS, first.left - 1)
            first.left -= found
            self.waiting_tokens -= found
            self.cached += found

    def end(self, now_s: float) -> StepEnd:
        """End the step: every open answer has one token more."""
        self._share()
        self.steps += 1
        self.context += len(self.open)
        ended: list[Text] = []
        while self.open and self.open[0][0] <= self.steps:
            _, _, request = heappop(self.open)
            self.context -= request.tokens
            request.energy_j += self._token_j
            ended.append(request)
        for request in self.begun:  # the prompt's last step gives the first token
            request.first_s = now_s
            if self.cache is not None:
                self.cache.add(request.blocks)
            if request.output_tokens <= 1:
                ended.append(request)
                continue
            self.number += 1
            self.context += request.input_tokens + 1
            request.energy_j -= self._token_j
            heappush(self.open, (self.steps + request.output_tokens - 1, self.number, request))
        for request in ended:
            request.ended_s = now_s
            self.kept -= request.tokens
        first, self.begun = self.begun, []
        self.busy = False
        return StepEnd(first, ended)

    def _share(self) -> None:
        """Give every token that the step computed, of prompts or answers, as much of its energy."""
        tokens = len(self.open)
        for _, taken in self._taken:
            tokens += taken
        token_j = self.present.energy_j / tokens
        self._token_j += token_j
        for request, taken in self._taken:
            request.energy_j += token_j * taken
        self._taken.clear()


ClockAt = Callable[[Replica, float], float]
"""Returns the clock of a replica's next step, over the highest, at a time."""
