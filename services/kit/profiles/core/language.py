"""An analytic profile of a language model: prompts are computed, answers are read from memory.

    prompt  = processes * batch * prompt tokens * 2 * parameters / (FP16 peak * PROMPT_EFFICIENCY)
    token   = bytes of the weights / (bandwidth * READ_EFFICIENCY)
              + processes * batch * 2 * parameters / (FP16 peak * TOKEN_EFFICIENCY)
    latency = prompt * stretch(prefill) + answer tokens * token * stretch(decode)
    power   = share of the SMs * (limit - idle)
              * (READING + (1 - READING) * (1 - exp(-processes * batch / FILL_SEQUENCES)))

An item is a whole answer; a batch is as many as the slots generate at a time. Reading the weights
draws two thirds of what a GPU can, however few answers share them: power hardly falls with small
batches, as a count of the arithmetic would have it. Fitted to vLLM on one H100 (57 rows, dense
models of 8 to 32 billion parameters, 8 to 691 sequences; github.com/ml-energy/leaderboard): total
power within 19 %, median 7 %; time between tokens within 41 %, median 15 %. Other GPUs follow from
their data sheets: profile them.

The two phases follow the SM clock differently. A prompt is bound by arithmetic. A token is not:
Llama took 0.6 % longer at 0.83 of a V100's clock (a sensitivity of 0.07), and no longer at 0.57 of
an A100's, for 37 % less energy (github.com/mertside/ai-inference-energy).
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

from services.kit.profiles.core import cpu
from services.kit.profiles.core.analytic import CARDS
from services.kit.profiles.core.clock_curve import curve_of
from services.kit.profiles.core.profile import BatchCost, SliceShape
from services.kit.units import BYTES_PER_MIB

PREFILL_SENSITIVITY: Final = 1.0
DECODE_SENSITIVITY: Final = 0.07

READING: Final = 0.64
"""Share of active power that a few sequences draw: memory is as busy as with many."""

FILL_SEQUENCES: Final = 160.0
"""Sequences by which power has come 63 % of the rest of the way."""

READ_EFFICIENCY: Final = 0.72
TOKEN_EFFICIENCY: Final = 0.17
PROMPT_EFFICIENCY: Final = 0.5

PROMPT_TOKENS_PER_STEP: Final = 150.0
"""Tokens of a prompt that take as long as one token of an answer: 143 to 242, Llama-2-70B on A100
and H100 (Splitwise, ISCA'24)."""

_TFLOPS_PER_SM: Final = 312 / 108  # of an A100, by which cards' speeds are given

BANDWIDTH_GB_PER_S: Final = {
    "a30": 933.0,
    "a100-40gb": 1555.0,
    "a100-80gb": 2039.0,
    "h100-80gb": 3350.0,
    "h200-141gb": 4800.0,
    "p4": 192.0,
    "t4": 320.0,
    "v100": 900.0,
}
"""Of the data sheets, by GPU type."""


@dataclass(frozen=True, slots=True)
class LanguageProfile:
    """The model for one language model.

    Attributes:
        parameters_b: Parameters that a token takes, 1e9.
        bytes_per_parameter: 2: FP16; 0.5: four bits.
        prompt_tokens, answer_tokens: Of a usual request.
        memory_mib_per_item: Memory of a slot's context, MiB.
        prefill_sensitivity, decode_sensitivity: How each phase follows the SM clock, 0..1.
    """

    parameters_b: float
    bytes_per_parameter: float = 2.0
    prompt_tokens: float = 512.0
    answer_tokens: float = 256.0
    memory_mib_per_item: float = 256.0
    prefill_sensitivity: float = PREFILL_SENSITIVITY
    decode_sensitivity: float = DECODE_SENSITIVITY

    @property
    def method(self) -> Literal["model"]:
        """Origin of the numbers: modelled."""
        return "model"

    @property
    def clock_sensitivity(self) -> float:
        """How the latency of a whole answer follows the clock, 0..1: both phases by their time."""
        prompt_steps = self.prompt_tokens / PROMPT_TOKENS_PER_STEP
        follows = prompt_steps * self.prefill_sensitivity
        follows += self.answer_tokens * self.decode_sensitivity
        return follows / (prompt_steps + self.answer_tokens)

    def batch(
        self, shape: SliceShape, batch_size: int, processes: int, *, clock_ratio: float = 1.0
    ) -> BatchCost | None:
        """Return the cost of one batch; see `Profile`. None: out of memory, or unknown GPU."""
        if not self._fits(shape, batch_size, processes):
            return None
        if shape.core_gmacs_per_s:
            tokens = self.prompt_tokens + self.answer_tokens
            return cpu.batch(shape, self.parameters_b * tokens * batch_size, processes)
        bandwidth = BANDWIDTH_GB_PER_S.get(shape.gpu)
        if bandwidth is None:
            return None
        curve = curve_of(shape.gpu)
        prompt_s = self.prompt_s(shape, processes * batch_size)
        token_s = self.token_s(shape, processes * batch_size)
        latency_s = prompt_s * curve.stretch(self.prefill_sensitivity, clock_ratio)
        latency_s += (
            self.answer_tokens * token_s * curve.stretch(self.decode_sensitivity, clock_ratio)
        )
        power_w = self.power_w(shape, processes * batch_size) * curve.power_ratio(clock_ratio)
        return BatchCost(latency_s, power_w * latency_s / processes)

    def prompt_s(self, shape: SliceShape, sequences: int) -> float:
        """Return the time of so many prompts at the highest clock, s."""
        return sequences * self.prompt_tokens * self._flops_s(shape) / PROMPT_EFFICIENCY

    def token_s(self, shape: SliceShape, sequences: int) -> float:
        """Return the time of one token of so many answers at the highest clock, s."""
        share = shape.sm_count / shape.gpu_sm_count
        read_gb = self.parameters_b * self.bytes_per_parameter
        read_s = read_gb / (share * BANDWIDTH_GB_PER_S[shape.gpu] * READ_EFFICIENCY)
        return read_s + sequences * self._flops_s(shape) / TOKEN_EFFICIENCY

    def power_w(self, shape: SliceShape, sequences: int) -> float:
        """Return the active power of a slice at the highest clock while it answers, W."""
        share = shape.sm_count / shape.gpu_sm_count
        rest = 1.0 - math.exp(-sequences / FILL_SEQUENCES)
        range_w = shape.max_power_w - shape.idle_power_w
        return share * range_w * (READING + (1.0 - READING) * rest)

    def _flops_s(self, shape: SliceShape) -> float:
        """Return the time of one token's arithmetic at the FP16 peak, s."""
        speed = CARDS[shape.gpu.partition("-")[0]].speed
        return 2e-3 * self.parameters_b / (speed * _TFLOPS_PER_SM * shape.sm_count)

    def _fits(self, shape: SliceShape, batch_size: int, processes: int) -> bool:
        weights_mib = self.parameters_b * self.bytes_per_parameter * 1e9 / BYTES_PER_MIB
        memory_mib = processes * (weights_mib + batch_size * self.memory_mib_per_item)
        return memory_mib * BYTES_PER_MIB <= shape.memory_bytes
