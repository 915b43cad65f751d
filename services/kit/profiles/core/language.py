"""A profile of a language model, by its steps: prompts are computed, answers are read from memory.

    step    = (fixed + parallel * GPUs beyond the first) * (active parameters / 70e9)^(1/3)
              + read * bytes of the weights that it touches / bandwidth
              + decode * sequences * 2 * active parameters / FP16 peak
              + kv * sequences * context * bytes of a token's keys and values / bandwidth
              + prefill * tokens of prompts * 2 * active parameters / FP16 peak
    power   = limit * (base + reading * share of bandwidth + computing * sqrt(share of the peak))

A token of a model of experts takes `active` of its parameters, and the tokens of a step together
touch 1 - (1 - active / all)^(1 + SPREAD * (tokens - 1)) of them: less than if each chose its
experts by chance. A dense model touches all.

A step gives every sequence that is decoded one token, and takes in tokens of prompts. Factors say
how far a GPU type is from its peaks (`services/kit/hardware/types`), those of models of experts
apart; the cube root stands for the layers, each with its own launches. Power is the whole GPU's,
its limit at most; active power is what it has above that of a GPU with a context that computes
nothing. The factors were fitted to every second row of published measurements and compared with the
others (`python -m benchmarks.token_profile`, docs/measurements/analytic-profile.md). Types without
measurements have the H100's factors on their own peaks.

Where copies of a model share the requests (data parallelism), or layers are on GPUs of their own
(pipeline), a group of GPUs computes its part of the answers, as if it had the model for itself.

Sources: ML.ENERGY leaderboard (github.com/ml-energy/leaderboard), vLLM, dense models of 8 to 405
billion parameters and models of experts of 21 to 671 on H100 and B200; Splitwise (ISCA'24,
github.com/Mutinifni/splitwise-sim), Llama-2-70B on A100, and prompts on A100 and H100.

An item is a whole answer; a batch is as many as the slots generate at a time. The two phases follow
the SM clock differently. A prompt is bound by arithmetic. A token is not: Llama took 0.6 % longer
at 0.83 of a V100's clock (a sensitivity of 0.07), and no longer at 0.57 of an A100's, for 37 % less
energy (github.com/mertside/ai-inference-energy).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol, Self, runtime_checkable

from services.kit import config
from services.kit.config import MeasuredSteps
from services.kit.hardware import gpu_types
from services.kit.hardware.gpu_types import TokenFactors, curve_of
from services.kit.profiles.core import cpu
from services.kit.profiles.core.profile import BatchCost, SliceShape
from services.kit.units import BYTES_PER_KIB, BYTES_PER_MIB

_FIXED_OF_B: Final = 70.0  # parameters of which `TokenFactors.fixed_s` is, 1e9

PROMPT_TOKENS_PER_STEP: Final = 150.0
"""Tokens of a prompt that take as long as one token of an answer: 143 to 242, Llama-2-70B on A100
and H100 (Splitwise, ISCA'24)."""


CHUNK_TOKENS: Final = 512
"""Tokens of prompts that a step of a server takes in at most, beside the answers."""

_Z99: Final = 2.326  # the normal distribution's 99th percentile, in standard deviations

SPREAD: Final = 0.3
"""Additional tokens of a step that choose experts of their own; fitted (ML.ENERGY)."""


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """Latencies of a typical request while every slot generates.

    Attributes:
        first_token_s: For a long prompt of its own and the step after it, s.
        token_s: Mean time between its tokens, in which others' prompts are taken in, s.
        prompt_s: By which its prompt delays prompts behind it, steps of answers included, s; 0: not
            known.
        prompt_deviation_s: Standard deviation of that from prompt to prompt, s.
    """

    first_token_s: float
    token_s: float
    prompt_s: float = 0.0
    prompt_deviation_s: float = 0.0

    def slower(self, factor: float) -> TokenTimes:
        """Return times that all are so many times as long."""
        return TokenTimes(
            factor * self.first_token_s,
            factor * self.token_s,
            factor * self.prompt_s,
            factor * self.prompt_deviation_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FormulaSteps:
    """Steps of a model on one slice by the formula, at the highest clock.

    Attributes:
        fixed_s, sequence_s, context_token_s, prompt_token_s: As of `MeasuredSteps`.
        factors: How far the GPU type is from its peaks.
        read_s: Time to read all weights at the slice's whole bandwidth, s.
        active: Share of the weights that one token takes; 1: the model is dense.
        expert_tokens: Tokens that meet at an expert for each that a group of GPUs computes.
        kv_token_s: The same of a token's keys and values, s.
        flops_s: Time of one token's arithmetic at the peak, s.
        share: Of the GPU's SMs, or how many GPUs.
        groups: Copies or stages of the model, among which answers are divided.
        context_w: Power of the whole GPU with a context and nothing computed, W.
        limit_w: Power limit of the whole GPU, W.
    """

    fixed_s: float
    sequence_s: float
    context_token_s: float
    prompt_token_s: float
    factors: TokenFactors
    read_s: float
    kv_token_s: float
    flops_s: float
    share: float
    context_w: float
    limit_w: float
    active: float = 1.0
    expert_tokens: float = 1.0
    groups: int = 1

    def weights_s(self, tokens: float) -> float:
        """Return the time to read the weights that a step's tokens touch at the bandwidth, s."""
        if self.active >= 1.0:
            return self.read_s
        met = tokens * self.expert_tokens / self.groups
        untouched = math.pow(1.0 - self.active, 1.0 + SPREAD * max(met - 1.0, 0.0))
        return self.read_s * min(met, 1.0) * (1.0 - untouched)


Steps = FormulaSteps | MeasuredSteps


def _variation(ratio: float) -> float:
    """Return the deviation of prompts' lengths over their mean.

    Args:
        ratio: 99th percentile over mean; lengths are taken to be log-normal.
    """
    if ratio <= 1.0:
        return 0.0
    root = math.sqrt(max(_Z99**2 - 2 * math.log(ratio), 0.0))
    return math.sqrt(math.expm1((_Z99 - root) ** 2))


def long_prompt_tokens(mean_tokens: float, mean_square: float) -> float:
    """Return the 99th percentile of prompts' lengths, taken to be log-normal, tokens; >= the mean.

    Args:
        mean_tokens: Mean length, > 0.
        mean_square: Mean of the lengths' squares.
    """
    spread = math.sqrt(max(math.log(max(mean_square, 1e-9) / mean_tokens**2), 0.0))
    return mean_tokens * math.exp(max(_Z99 * spread - spread**2 / 2, 0.0))


def step_s(
    steps: Steps, sequences: float, context_tokens: float, prompt_tokens: float = 0.0
) -> float:
    """Return the time of one step at the highest clock, s.

    Args:
        steps: The model's on the slice.
        sequences: Answers that are generated, each of which gets a token.
        context_tokens: Mean tokens of their prompts and answers so far.
        prompt_tokens: Tokens of other prompts that the step takes in.
    """
    answers_s = steps.sequence_s + steps.context_token_s * context_tokens
    time_s = steps.fixed_s + answers_s * sequences + steps.prompt_token_s * prompt_tokens
    if isinstance(steps, FormulaSteps):
        time_s += steps.factors.read * steps.weights_s(sequences + prompt_tokens)
    return time_s


def step_power_w(
    steps: Steps, sequences: float, context_tokens: float, prompt_tokens: float, time_s: float
) -> float:
    """Return the active power of a step that takes `time_s`, W; see `step_s`."""
    if isinstance(steps, MeasuredSteps):
        answers_j = steps.sequence_j + steps.context_token_j * context_tokens
        energy_j = steps.fixed_j + answers_j * sequences + steps.prompt_token_j * prompt_tokens
        return energy_j / time_s
    factors = steps.factors
    read_s = steps.weights_s(sequences + prompt_tokens)
    bandwidth_share = (read_s + sequences * context_tokens * steps.kv_token_s) / time_s
    peak_share = (sequences + prompt_tokens) * steps.flops_s / time_s
    used = factors.base + factors.reading * bandwidth_share
    used += factors.computing * math.sqrt(peak_share)
    return steps.share * max(min(used, 1.0) * steps.limit_w - steps.context_w, 0.0)


@runtime_checkable
class TokenProfile(Protocol):
    """A profile with latencies of tokens."""

    def token_times(
        self, shape: SliceShape, batch_size: int, processes: int, *, clock_ratio: float = 1.0
    ) -> TokenTimes | None:
        """Return the times of a usual request's tokens; None: not known."""
        ...


@dataclass(frozen=True, slots=True)
class LanguageProfile:
    """The model for one language model.

    Attributes:
        settings: Of the deployment file.
        parallel: Division among the GPUs of a segment; None: each layer is, among all.
    """

    settings: config.LanguageProfile
    parallel: config.Parallel | None = None

    @classmethod
    def of(cls, parameters_b: float, **settings: Any) -> Self:
        """Return the model of a language model with so many parameters, 1e9."""
        given = {"kind": "language", "parameters_b": parameters_b} | settings
        return cls(config.LanguageProfile(**given))

    def changed(self, **settings: Any) -> LanguageProfile:
        """Return the model of other settings."""
        return replace(self, settings=self.settings.model_copy(update=settings))

    @property
    def method(self) -> Literal["model", "table"]:
        """Origin of the numbers: modelled, or measured on some slices at least."""
        return "table" if self.settings.measured else "model"

    @property
    def clock_sensitivity(self) -> float:
        """Clock sensitivity of a whole answer's latency, 0..1: mean of the phases by time."""
        its = self.settings
        prompt_steps = its.prompt_tokens / PROMPT_TOKENS_PER_STEP
        follows = prompt_steps * its.prefill_sensitivity
        follows += its.answer_tokens * its.decode_sensitivity
        return follows / (prompt_steps + its.answer_tokens)

    def batch(
        self, shape: SliceShape, batch_size: int, processes: int, *, clock_ratio: float = 1.0
    ) -> BatchCost | None:
        """Return the cost of one batch; see `Profile`. None: out of memory, or unknown GPU."""
        its = self.settings
        if not self._fits(shape, batch_size, processes):
            return None
        tokens = its.prompt_tokens + its.answer_tokens
        if not self._knows(shape):
            return (
                cpu.batch(shape, its.active_b * tokens * batch_size, processes)
                if shape.core_gmacs_per_s
                else None
            )
        curve, steps = curve_of(shape.performance), self.steps(shape)
        answers = processes * batch_size
        time_s = step_s(steps, answers, self._context_tokens)
        prompt_s = answers * its.prompt_tokens * steps.prompt_token_s
        latency_s = prompt_s * curve.stretch(its.prefill_sensitivity, clock_ratio)
        latency_s += its.answer_tokens * time_s * curve.stretch(its.decode_sensitivity, clock_ratio)
        power_w = self._mean_power_w(steps, answers) * curve.power_ratio(clock_ratio)
        return BatchCost(latency_s, power_w * latency_s / processes)

    def _mean_power_w(self, steps: Steps, answers: int) -> float:
        """Return the mean active power at the highest clock while so many are generated, W.

        Steps that take in a chunk of a prompt draw more than those between them. Prompts differ in
        length: of one that is longer than a chunk the last chunk is half full.
        """
        its, context = self.settings, self._context_tokens
        chunks = answers * max(its.prompt_tokens / CHUNK_TOKENS + 0.5, 1.0)
        with_prompt = min(chunks, max(its.answer_tokens, 1.0))
        between = max(its.answer_tokens - with_prompt, 0.0)
        all_s = all_j = 0.0
        taken = answers * its.prompt_tokens / with_prompt
        for count, tokens in ((between, 0.0), (with_prompt, taken)):
            time_s = step_s(steps, answers, context, tokens)
            all_s += count * time_s
            all_j += count * time_s * step_power_w(steps, answers, context, tokens, time_s)
        return all_j / all_s

    def token_times(
        self, shape: SliceShape, batch_size: int, processes: int, *, clock_ratio: float = 1.0
    ) -> TokenTimes | None:
        """Return the times of a usual request's tokens; None: as of `batch`, or on CPU cores."""
        its = self.settings
        whole = self.batch(shape, batch_size, processes, clock_ratio=clock_ratio)
        if whole is None or not self._knows(shape):
            return None
        curve, steps = curve_of(shape.performance), self.steps(shape)
        time_s = step_s(steps, processes * batch_size, self._context_tokens)
        time_s *= curve.stretch(its.decode_sensitivity, clock_ratio)
        prompt_token_s = steps.prompt_token_s * curve.stretch(its.prefill_sensitivity, clock_ratio)
        longest = its.long_prompt_tokens or its.prompt_tokens
        prompt_s = its.prompt_tokens * (prompt_token_s + time_s / CHUNK_TOKENS)
        # One copy computes a prompt, or one stage after the other.
        groups = steps.groups if isinstance(steps, FormulaSteps) else 1
        most_s = time_s + CHUNK_TOKENS * prompt_token_s  # however many prompts wait
        return TokenTimes(
            longest * prompt_token_s * groups + time_s,
            min(whole.latency_s / max(its.answer_tokens, 1.0), most_s),
            prompt_s,
            prompt_s * _variation(longest / its.prompt_tokens),
        )

    def steps(self, shape: SliceShape) -> Steps:
        """Return the steps on a slice.

        Args:
            shape: The slice, measured or of a GPU whose performance is known; its SMs are more
                than the GPU's where several GPUs share the model.

        Raises:
            ValueError: It is neither.
        """
        its = self.settings
        measured, known = self._measured_on(shape), shape.performance
        if measured is not None:
            return measured
        if known is None:
            raise ValueError(f"nothing is known of {shape.gpu}")
        table, active = gpu_types.load(known.like), its.active_b / its.parameters_b
        factors = table.tokens if active >= 1.0 else table.experts
        share, parallel = shape.sm_count / shape.gpu_sm_count, self.parallel
        groups = parallel.pipeline * parallel.data if parallel else 1
        per_group, size = share / groups, math.cbrt(its.active_b / _FIXED_OF_B)
        others = max(per_group - 1.0, 0.0)
        # Experts that are spread over more GPUs than a group has meet the tokens of them all.
        spread = max(parallel.expert / per_group, 1.0) if parallel else 1.0
        flops_s = 2e-3 * its.active_b / (known.fp16_tflops * per_group)
        read_s = its.parameters_b * its.bytes_per_parameter / (known.memory_gb_per_s * per_group)
        kv_gb = its.kv_kib_per_token * BYTES_PER_KIB / 1e9
        kv_token_s = kv_gb / (known.memory_gb_per_s * per_group)
        # Sums as wide as a layer, twice in each: layers and their width are a root each.
        prompt_token_s = factors.prefill * flops_s + factors.exchange_s * others * size**2
        return FormulaSteps(
            fixed_s=(factors.fixed_s + factors.parallel_s * others) * size,
            sequence_s=factors.decode * flops_s / groups,
            context_token_s=factors.kv * kv_token_s / groups,
            prompt_token_s=prompt_token_s / groups,
            factors=factors,
            read_s=read_s / spread if active < 1.0 else read_s,
            kv_token_s=kv_token_s / groups,
            flops_s=flops_s / groups,
            share=share,
            context_w=shape.context_power_w,
            limit_w=shape.max_power_w,
            active=active,
            expert_tokens=spread,
            groups=groups,
        )

    def _knows(self, shape: SliceShape) -> bool:
        return shape.performance is not None or self._measured_on(shape) is not None

    def _measured_on(self, shape: SliceShape) -> MeasuredSteps | None:
        here = (shape.gpu, shape.profile, shape.gpus)
        measured = self.settings.measured
        return next((e for e in measured if (e.gpu, e.slice, e.gpus) == here), None)

    @property
    def _context_tokens(self) -> float:
        """Mean context of a usual answer while it is generated."""
        its = self.settings
        return its.prompt_tokens + its.answer_tokens / 2

    def _fits(self, shape: SliceShape, batch_size: int, processes: int) -> bool:
        its = self.settings
        memory_bytes = batch_size * its.memory_mib_per_item * BYTES_PER_MIB + self.weights_bytes
        return processes * memory_bytes <= shape.memory_bytes

    @property
    def weights_bytes(self) -> float:
        """Memory of the weights: of every copy, where experts are not spread over all copies."""
        its, parallel = self.settings, self.parallel
        one_gb = its.parameters_b * its.bytes_per_parameter
        if parallel is None or parallel.data == 1:
            return 1e9 * one_gb
        apart = its.active_parameters_b is not None and parallel.expert > parallel.tensor
        more_gb = its.active_b * its.bytes_per_parameter if apart else one_gb
        return 1e9 * (one_gb + (parallel.data - 1) * more_gb)
