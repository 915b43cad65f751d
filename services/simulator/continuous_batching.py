"""Continuous batching of a language model on a GPU, from its profile.

Between two events (a prompt is admitted, an answer ends, the clock changes) every step gives the
same answers a token each, and takes a fixed time longer than the step before. Such a *run* of steps
is begun and ended as one; an event before its end cuts it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from services.kit.hardware.gpu_types import curve_of
from services.kit.profiles.core.language import (
    CHUNK_TOKENS,
    LanguageProfile,
    step_power_w,
    step_s,
)
from services.kit.profiles.core.profile import SliceShape
from services.kit.units import BYTES_PER_KIB
from services.router.core.prefix_cache import PrefixCache

BLOCK_TOKENS: Final = 512
"""Tokens per block of a prompt, as in Mooncake's trace."""

_MEMORY_SHARE: Final = 0.9
"""Share of a slice's memory for weights and contexts: vLLM's default `gpu_memory_utilization`."""


@dataclass(slots=True)
class Text:
    """A request for text.

    Attributes:
        input_tokens: Tokens of its prompt.
        output_tokens: Tokens of its answer.
        first_s, ended_s: Times of its first and its last token, virtual time, s; 0: not yet.
        first_s, ended_s: When its first and its last token came; 0: not yet.
        blocks: Names of its prompt's blocks.
        number: Its number, unique at its owner.
        deadline_s: Time at which its caller stops waiting, virtual time, s.
        energy_j: Its tokens' shares of their steps' energy, once it has ended, J.
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
        """Time to the first token, s."""
        return self.first_s - self.arrived_s

    @property
    def tpot_s(self) -> float:
        """Mean time between tokens, s."""
        return (self.ended_s - self.first_s) / max(self.output_tokens - 1, 1)


class Step(NamedTuple):
    """A step of all answers. Attributes: time_s, energy_j (active)."""

    time_s: float
    energy_j: float


_NO_STEP: Final = Step(0.0, 0.0)
_FEW: Final = 9  # number of values that are added one by one
_ROUNDING: Final = 1e-11


class StepCosts:
    """Time and energy of steps.

    Args:
        profile: The model's profile.
        shape: The slice, of a GPU type in the profile.
        slowdown: Factor on the profile's time and energy.
    """

    def __init__(self, profile: LanguageProfile, shape: SliceShape, slowdown: float = 1.0) -> None:
        self.shape = shape
        self.profile = profile
        self._slowdown = slowdown
        self._steps = profile.steps(shape)
        self._curve = curve_of(shape.performance)
        self._ratios: dict[float, tuple[float, float, float]] = {}

    def step(self, clock: float, sequences: float, context: float, prompt: float) -> Step:
        """Return the cost of a step.

        Args:
            clock: SM clock over the highest.
            sequences: Number of answers that get a token.
            context: Their mean context, tokens.
            prompt: Tokens of prompts computed in the step.
        """
        decode, prefill, power = self._ratios.get(clock) or self._at(clock)
        steps = self._steps
        fast_s = step_s(steps, sequences, context)
        whole_s = step_s(steps, sequences, context, prompt) if prompt else fast_s
        time_s = fast_s * decode + (whole_s - fast_s) * prefill
        power_w = step_power_w(steps, sequences, context, prompt, whole_s)
        return Step(time_s * self._slowdown, power_w * power * time_s * self._slowdown)

    def time_s(self, clock: float, sequences: float, context: float, prompt: float) -> float:
        """Return the time of a step, s; see `step`."""
        decode, prefill, _ = self._ratios.get(clock) or self._at(clock)
        fast_s = step_s(self._steps, sequences, context)
        whole_s = step_s(self._steps, sequences, context, prompt) if prompt else fast_s
        return (fast_s * decode + (whole_s - fast_s) * prefill) * self._slowdown

    def energy_j(self, clock: float, sequences: float, context: float, count: int) -> float:
        """Return the energy of steps without prompts, each with a token of context more, J.

        Args:
            clock: See `step`.
            sequences: See `step`.
            context: Mean context of the answers in the first step, tokens.
            count: Number of steps.
        """
        steps = self._steps
        decode, _, power = self._ratios.get(clock) or self._at(clock)

        def fast_j(context: float) -> float:
            time_s = step_s(steps, sequences, context)
            return step_power_w(steps, sequences, context, 0.0, time_s) * time_s

        return _sum(fast_j, context, count) * decode * power * self._slowdown

    def longer_s(self, clock: float, sequences: float) -> float:
        """Return the additional time of a step when each answer has a token of context more, s."""
        decode, _, _ = self._ratios.get(clock) or self._at(clock)
        return sequences * self._steps.context_token_s * decode * self._slowdown

    def _at(self, clock: float) -> tuple[float, float, float]:
        curve, profile = self._curve, self.profile
        self._ratios[clock] = found = (
            curve.stretch(profile.settings.decode_sensitivity, clock),
            curve.stretch(profile.settings.prefill_sensitivity, clock),
            curve.power_ratio(clock),
        )
        return found


def _sum(function: Callable[[float], float], first: float, count: int) -> float:
    """Return the sum of a function's values at `first`, `first` + 1, and so on, `count` in all.

    Long ranges are halved until Simpson's rule gives the same sum for both halves as for the whole:
    it is exact for cubics, but power, which has a limit, may have a kink.
    """
    if count <= _FEW:
        return sum(function(first + number) for number in range(count))
    half = count // 2
    whole = _simpson(function, first, count)
    halves = _simpson(function, first, half) + _simpson(function, first + half, count - half)
    if abs(halves - whole) <= _ROUNDING * abs(whole):
        return halves
    return _sum(function, first, half) + _sum(function, first + half, count - half)


def _simpson(function: Callable[[float], float], first: float, count: int) -> float:
    span = count - 1
    outer = count * (count + 1) / (6 * span)
    ends = function(first) + function(first + span)
    return outer * ends + (count - 2 * outer) * function(first + span / 2)


def kv_tokens(profile: LanguageProfile, shape: SliceShape, processes: int = 1) -> int:
    """Return the tokens of context that fit beside the weights of one process, >= 1."""
    free_bytes = _MEMORY_SHARE * shape.memory_bytes / processes - profile.weights_bytes
    return max(int(free_bytes / (profile.settings.kv_kib_per_token * BYTES_PER_KIB)), 1)


@dataclass(slots=True)
class Waiting:
    """A prompt that waits to be computed. Attributes: request, tokens left of its prompt."""

    request: Text
    left: int


class RunEnd(NamedTuple):
    """Outcome of a run. Attributes: first (texts whose first token came), ended (texts)."""

    first: list[Text]
    ended: list[Text]


@dataclass(slots=True, eq=False)
class Replica:
    """One process with continuous batching; prompts are computed in order, in chunks.

    Attributes:
        engine: Costs of its steps.
        clock_at: Returns the clock of its next steps.
        slots: Largest number of answers at a time.
        kv_tokens: Tokens of context that fit.
        chunk: Most tokens of prompts in a step.
        cache: Prefixes that need not be computed again.
        beside: Returns the number of answers in other processes of its slice; a change cuts the
            run.
        context: Tokens of all open answers together.
        kept: Tokens of context reserved for its open or begun requests.
        steps: Number of steps that ended.
        active_j: Their active energy, J.
        busy_s: Their time, s.
        present: The current step, or the last one.
        began_s: Its start, virtual time, s.
        left: Steps of the run that have not ended; 0: none runs.
        cached: Tokens of prompts found in the cache.
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
    active_j: float = 0.0
    busy_s: float = 0.0
    present: Step = _NO_STEP
    began_s: float = 0.0
    left: int = 0
    begun: list[Text] = field(default_factory=list)
    number: int = 0
    cached: int = 0
    _taken: list[tuple[Text, int]] = field(default_factory=list)  # tokens in this step
    _clock: float = 1.0
    _others: int = 0  # answers beside its own
    _longer_s: float = 0.0  # than the step before, each step of the run
    _token_j: float = 0.0  # of an answer that was open in all steps

    @property
    def requests(self) -> int:
        """Number of its requests."""
        return len(self.waiting) + len(self.open) + len(self.begun)

    @property
    def ends_s(self) -> float:
        """End of the run, virtual time, s."""
        return self.began_s + self._time_of(self.left)

    def mean_context(self, now_s: float) -> float:
        """Return the mean context of open answers over the steps ended so far, tokens."""
        if not self.open:
            return 0.0
        return self.context / len(self.open) + (self._ended_by(now_s) if self.left > 1 else 0)

    def add(self, request: Text, now_s: float) -> None:
        """Queue a request; the next step may admit it."""
        self.waiting.append(Waiting(request, request.input_tokens))
        self.waiting_tokens += request.input_tokens
        if len(self.waiting) == 1 and self._fits(request):
            self.cut(now_s)

    def drop(self, request: Text) -> None:
        """Drop a request that has not ended; only between runs."""
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

    def begin(self, now_s: float) -> None:
        """Begin a run: one step if there are prompts to compute; else up to an answer's end."""
        prompt = self._take_prompts()
        self._clock, until_s = self.clock_at(self, now_s)
        self._others, self.began_s, self.left = self.beside(), now_s, 1
        self.present = self._step(prompt)
        if not prompt:
            self.left = self.open[0][0] - self.steps
            self._longer_s = self.engine.longer_s(self._clock, len(self.open) + self._others)
            self.cut(until_s)

    def cut(self, at_s: float) -> None:
        """End the run with the step that runs at a time."""
        if self.left > 1 and at_s < self.ends_s:
            self.left = min(self._ended_by(at_s) + 1, self.left)

    def catch_up(self, now_s: float) -> None:
        """Count the steps ended so far; the last one of the run continues to its end."""
        ended = min(self._ended_by(now_s), self.left - 1) if self.left > 1 else 0
        if ended:
            self.began_s += self._count(ended)
            self.present = self._step(0)

    def _take_prompts(self) -> int:
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
        return self.chunk - left

    def _step(self, prompt: int) -> Step:
        own, others = len(self.open), self._others
        context = self.context / own if own else 0.0
        step = self.engine.step(self._clock, own + others, context, prompt)
        if others and not prompt:  # processes share a slice's steps by their answers
            step = Step(step.time_s, step.energy_j * own / (own + others))
        elif others:  # what the others' answers take meanwhile, they count
            time_s, energy_j = self.engine.step(self._clock, own + others, context, 0)
            their_j = energy_j / time_s * step.time_s * others / (own + others)
            step = Step(step.time_s, max(step.energy_j - their_j, 0.0))
        return step

    def _time_of(self, count: int) -> float:
        return count * (self.present.time_s + self._longer_s * (count - 1) / 2)

    def _ended_by(self, now_s: float) -> int:
        """Return the number of steps of the run that have ended but are not counted."""
        return bisect_right(range(1, self.left + 1), now_s - self.began_s, key=self._time_of)

    def _count(self, ended: int) -> float:
        """Count steps without prompts; return their time, s."""
        own, energy_j = len(self.open), self.present.energy_j
        if ended > 1:
            energy_j = self.engine.energy_j(
                self._clock, own + self._others, self.context / own, ended
            )
            energy_j *= own / (own + self._others)
        time_s = self._time_of(ended)
        self._add(ended, time_s, energy_j, energy_j / own)
        return time_s

    def _count_prompts(self) -> None:
        """Count a step with prompts; its energy is split evenly over all tokens."""
        time_s, energy_j = self.present
        token_j = energy_j / (len(self.open) + sum(taken for _, taken in self._taken))
        for request, taken in self._taken:
            request.energy_j += token_j * taken
        self._taken.clear()
        self._add(1, time_s, energy_j, token_j)

    def _add(self, steps: int, time_s: float, energy_j: float, token_j: float) -> None:
        self.steps += steps
        self.left -= steps
        self.busy_s += time_s
        self.active_j += energy_j
        self._token_j += token_j
        self.context += steps * len(self.open)

    def _fits(self, request: Text) -> bool:
        count = len(self.open) + len(self.begun)
        return count < self.slots and (not count or self.kept + request.tokens <= self.kv_tokens)

    def _reuse(self, first: Waiting) -> None:
        """Skip the cached part of a prompt that begins; the last token is always computed."""
        request = first.request
        if self.cache is not None and first.left == request.input_tokens:
            found = min(self.cache.matched(request.blocks) * BLOCK_TOKENS, first.left - 1)
            first.left -= found
            self.waiting_tokens -= found
            self.cached += found

    def end(self, now_s: float) -> RunEnd:
        """End the run: every open answer gets a token per step."""
        if self._taken:
            self._count_prompts()
        else:
            self._count(self.left)
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
        return RunEnd(first, ended)


ClockAt = Callable[[Replica, float], tuple[float, float]]
"""Returns the clock of a replica's next steps, over the highest, and the end of that clock, s."""
