"""Times of operators on a GPU, modelled from its data sheet.

The roofline (S. Williams, A. Waterman, D. Patterson, "Roofline: An Insightful Visual Performance
Model for Multicore Architectures", CACM 52(4), 2009): an operator takes as long as its arithmetic
at the peak of the units that do it, or as its bytes at the memory's bandwidth, whichever is longer.
The SM clock moves the first alone; memory has a clock of its own. A kernel also takes the time to
launch it, which no clock of the GPU changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from services.kit.hardware.gpu_types import GpuTable, Peaks
from services.kit.operators.core.clock_sensitivity import CLOCK_DROP, FREE, Cost
from services.kit.operators.core.graph import Operator

LAUNCH_S: Final = 4e-6
"""From one small kernel of a stream to the next; assumed, as CUDA does it since Volta."""

MATRIX_OPERATORS: Final = frozenset(
    {
        "Conv",
        "ConvInteger",
        "ConvTranspose",
        "DynamicQuantizeMatMul",
        "FusedMatMul",
        "GRU",
        "Gemm",
        "LSTM",
        "MatMul",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
        "RNN",
    }
)
"""Operator types that tensor cores compute."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """A GPU type as two lines.

    Attributes:
        device: Its name.
        peaks: Its data sheet.
        launch_s: Time to launch a kernel, s.
        method: Times are modelled, not measured.
    """

    method: ClassVar[str] = "model"

    device: str
    peaks: Peaks
    launch_s: float = LAUNCH_S

    @classmethod
    def of(cls, gpu: GpuTable) -> Roofline:
        """Return the roofline of a GPU type."""
        return cls(gpu.name, gpu.peak)

    def cost(self, operator: Operator) -> Cost:
        """Return an operator's times at the default clock, which is the highest, and at half."""
        if operator.work.free:
            return FREE
        return Cost(self.latency_s(operator, 1.0), self.latency_s(operator, 1.0 - CLOCK_DROP))

    def latency_s(self, operator: Operator, clock_ratio: float) -> float:
        """Return the time of an operator that launches a kernel, s.

        Args:
            operator: The operator.
            clock_ratio: SM clock over the highest, 0 < ratio <= 1.
        """
        compute_s = operator.work.flops / (self.peak_flops(operator) * clock_ratio)
        memory_s = operator.work.moved_bytes / (self.peaks.memory_gb_per_s * 1e9)
        return self.launch_s + max(compute_s, memory_s)

    def peak_flops(self, operator: Operator) -> float:
        """Return the operations per second of the units that compute an operator."""
        if operator.type not in MATRIX_OPERATORS:
            return self.peaks.fp32_tflops * 1e12
        if operator.datatype in {"int8", "uint8"}:
            return self.peaks.int8_tops * 1e12
        if operator.datatype in {"float16", "bfloat16"}:
            return self.peaks.fp16_tflops * 1e12
        return self.peaks.tf32_tflops * 1e12
