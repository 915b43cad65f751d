"""Steps of language models on the whole GPU, beside the formula that plans use."""

import time
from collections.abc import Iterator
from typing import Final

import pynvml

from benchmarks.gpu_report.measure import Row, metered, whole
from benchmarks.gpu_report.transformer import Decoder, Step, Weights
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.devices.nvml_gpus import NvmlGpus
from services.kit.profiles.core.language import LanguageProfile, step_power_w, step_s

DECODED: Final = ((1, 1024), (8, 1024), (32, 1024), (128, 1024), (256, 1024), (64, 256), (64, 4096))
"""Sequences and tokens of context of steps that generate."""

TAKEN_IN: Final = ((1, 512), (1, 2048), (4, 2048))
"""Prompts and tokens of each of steps that take prompts in."""

_WARM_S: Final = 0.4
_SYNCHRONIZE: Final = 16  # steps that are queued at a time
_SPARE_BYTES: Final = 6e9  # of what a step computes


def steps(gpus: NvmlGpus, gpu: GpuInfo, decoder: Decoder, seconds: float) -> Iterator[Row]:
    """Yield time and energy of each kind of step; of those that fit the memory.

    Args:
        gpus: Their meters.
        gpu: The one that computes.
        decoder: Shape of the model.
        seconds: Time per kind, s.
    """
    import torch  # noqa: PLC0415 - the report runs without it

    shape = whole(gpu)
    free_bytes = shape.memory_bytes - decoder.weights_bytes - _SPARE_BYTES
    if free_bytes <= 0:
        return
    weights = Weights(decoder, "cuda")
    known = LanguageProfile.of(
        decoder.parameters_b, kv_kib_per_token=decoder.kv_kib_per_token
    ).steps(shape)
    for sequences, context in DECODED:
        if sequences * context * decoder.kv_kib_per_token * 1024 > free_bytes:
            continue
        row = _measured(gpus, gpu, weights.decode(sequences, context), seconds)
        modelled_s = step_s(known, sequences, context)
        modelled_w = step_power_w(known, sequences, context, 0.0, modelled_s)
        step = {"model": decoder.name, "step": f"{sequences} answers of {context}"}
        yield step | _compared(row, sequences, modelled_s, modelled_w)
        torch.cuda.empty_cache()
    for prompts, tokens in TAKEN_IN:
        row = _measured(gpus, gpu, weights.prefill(prompts, tokens), seconds)
        modelled_s = step_s(known, 0, 0.0, prompts * tokens)
        modelled_w = step_power_w(known, 0, 0.0, prompts * tokens, modelled_s)
        step = {"model": decoder.name, "step": f"{prompts} prompts of {tokens}"}
        yield step | _compared(row, prompts * tokens, modelled_s, modelled_w)
        torch.cuda.empty_cache()


def _measured(gpus: NvmlGpus, gpu: GpuInfo, step: Step, seconds: float) -> Row:
    """Return a step's time, its power above that of a context, and the board's state meanwhile."""
    import torch  # noqa: PLC0415

    _repeat(step, _WARM_S)
    with metered(gpus, gpu.uuid) as power:
        taken_s = _repeat(step, seconds)
    device = pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid.encode())
    for _ in range(_SYNCHRONIZE):  # clocks are read under load
        step()
    row = {
        "step_ms": 1e3 * taken_s,
        "active_w": power.counter_j / power.took_s - gpu.model.context_power_w,
        "temperature_c": pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU),
        "sm_clock_mhz": pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM),
    }
    torch.cuda.synchronize()
    return row


def _repeat(step: Step, seconds: float) -> float:
    """Return the mean time of a step that is repeated for so long, s."""
    import torch  # noqa: PLC0415

    torch.cuda.synchronize()
    began_s, runs = time.perf_counter(), 0
    while (took_s := time.perf_counter() - began_s) < seconds:
        for _ in range(_SYNCHRONIZE if took_s else 1):
            step()
            runs += 1
        torch.cuda.synchronize()
    return took_s / runs


def _compared(row: Row, tokens: int, modelled_s: float, modelled_w: float) -> Row:
    taken_s, active_w = row["step_ms"] / 1e3, row["active_w"]
    return {
        **row,
        "active_mj_per_token": 1e3 * active_w * taken_s / tokens,
        "model_over_step": modelled_s / taken_s,
        "model_over_power": modelled_w / active_w,
        "model_over_energy": modelled_s * modelled_w / (taken_s * active_w),
    }
