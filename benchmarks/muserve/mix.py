"""Table 1 of mu-Serve (ATC'24): the models, their sizes and latencies as published.

The table does not say how sensitive a model is to the clock. That follows here from what its
operators are bound by, on the V100's roofline in FP32 (14 TFLOP/s, 900 GB/s; NVIDIA's data sheet;
the published sizes are four bytes per parameter): a generating model reads all its weights for each
token, so that memory bounds it, and its published latency is just that of 100 to 280 tokens; an
encoder multiplies matrices for all its tokens at once, so that arithmetic does. What arithmetic
bounds has a sensitivity of 1. Of the 20 kernels measured on a V100 (NV-DVFS-Benchmark) the least
sensitive one, a walk through memory, follows the clock half as much as the median: that is taken
for an encoder's other operators. Decoding follows the clock less than any kernel, as measured on
whole models: see `DECODE_SENSITIVITY`.
"""

from dataclasses import dataclass, replace
from typing import Final

from benchmarks.muserve.planning.model import Device, Partition, Served
from services.kit.config.models import DECODE_SENSITIVITY
from services.kit.units import BYTES_PER_MIB

INSENSITIVE: Final = 0.5
UNITS: Final = 4
"""Partitions per model: quarters of its layers, as its layers are alike."""

TRANSFER_S: Final = 3e-4
"""512 tokens of 2,048 numbers over PCIe 3.0 (12 GB/s)."""

GB: Final = 1e9
MEMORY_BYTES: Final = 16 * 1024 * BYTES_PER_MIB


@dataclass(frozen=True, slots=True)
class Row:
    """A row of Table 1.

    Attributes:
        name: The model's.
        size_gb: Memory, GB.
        latency_s: One request of 512 tokens alone on a GPU, s.
        arithmetic: Share of its time that arithmetic bounds, per quarter: GEMMs of the encoder, or
            of the prompt where it generates; the rest is bound by memory.
        generates: The model is autoregressive.
    """

    name: str
    size_gb: float
    latency_s: float
    arithmetic: tuple[float, ...]
    generates: bool


_DECODED = 0.05  # what a prompt takes beside the tokens after it
_VISION = (0.5, 0.8, 0.9, 0.9)  # early convolutions move large maps through few channels
_ENCODER = (0.85,) * UNITS  # softmax, GELU and normalisation take the rest
_DECODER = (_DECODED,) * UNITS
_BOTH = (0.85, _DECODED, _DECODED, _DECODED)  # T5 shape: an encoder's pass, then a decoder's tokens

TABLE: Final = (
    Row("resnet-50", 0.2, 0.051, _VISION, generates=False),
    Row("bert-base", 0.5, 0.123, _ENCODER, generates=False),
    Row("bert-large", 1.4, 0.365, _ENCODER, generates=False),
    Row("roberta-base", 0.5, 0.135, _ENCODER, generates=False),
    Row("roberta-large", 1.4, 0.382, _ENCODER, generates=False),
    Row("opt-1.3b", 5.0, 1.243, _DECODER, generates=True),
    Row("opt-2.7b", 10.4, 2.351, _DECODER, generates=True),
    Row("gpt2-large", 3.3, 0.832, _DECODER, generates=True),
    Row("gpt2-xl", 6.4, 1.602, _DECODER, generates=True),
    Row("codegen-350m", 1.3, 0.357, _DECODER, generates=True),
    Row("codegen-2b", 8.0, 2.507, _DECODER, generates=True),
    Row("bloom-1b1", 4.0, 0.523, _DECODER, generates=True),
    Row("bloom-3b", 11.0, 1.293, _DECODER, generates=True),
    Row("switch-base-16", 2.4, 0.348, _BOTH, generates=True),
    Row("switch-base-32", 4.8, 0.402, _BOTH, generates=True),
)

GENERATES: Final = frozenset(row.name for row in TABLE if row.generates)


def devices(count: int) -> tuple[Device, ...]:
    """Return so many V100s."""
    return tuple(Device(f"gpu-{number}", MEMORY_BYTES) for number in range(count))


def served(slo_scale: float, rates_rps: dict[str, float], work: float) -> tuple[Served, ...]:
    """Return the models with their load and objectives.

    Args:
        slo_scale: Objective over the latency of one request alone (AlpaServe's SLO scale).
        rates_rps: By model.
        work: Mean work of a request to a generating model over that of 512 tokens.
    """
    return tuple(
        Served(
            row.name,
            _partitions(row),
            rates_rps[row.name],
            slo_scale * (row.latency_s + (UNITS - 1) * TRANSFER_S),
            work if row.generates else 1.0,
        )
        for row in TABLE
    )


def insensitive(models: tuple[Served, ...], share: float) -> tuple[Served, ...]:
    """Return the models with this share of every model's work insensitive (the paper's Fig. 14a).

    The first partitions are insensitive, and the one on the border is so in part.
    """
    return tuple(
        replace(model, partitions=tuple(_dulled(each, share) for each in model.partitions))
        for model in models
    )


def _dulled(partition: Partition, share: float) -> Partition:
    inside = min(max(share * UNITS - partition.index, 0.0), 1.0)
    return replace(partition, sensitivity=1.0 - (1.0 - INSENSITIVE) * inside)


def _partitions(row: Row) -> tuple[Partition, ...]:
    return tuple(
        Partition(
            model=row.name,
            index=index,
            memory_bytes=round(row.size_gb * GB / UNITS),
            latency_s=row.latency_s / UNITS,
            sensitivity=share + (1.0 - share) * _rest(share),
            transfer_s=TRANSFER_S,
        )
        for index, share in enumerate(row.arithmetic)
    )


def _rest(arithmetic: float) -> float:
    """Return the sensitivity of what arithmetic does not bound."""
    return DECODE_SENSITIVITY if arithmetic == _DECODED else INSENSITIVE
