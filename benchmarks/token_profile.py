"""The profile of language models, step by step, against published measurements.

ML.ENERGY's leaderboard (vLLM, dense models of 8 to 405 billion parameters, models of experts of 21
to 671, a hybrid of Mamba and attention; H100 and B200) and Splitwise's measurements (Llama-2-70B on
A100; prompts of up to 4 requests on A100 and H100). Factors are fitted by bounded least squares of
relative errors to every second row of each GPU type, and judged on the others, as are those that
the profile has (`core/language.py`). GPUs that share a model are one GPU with as many times the
bandwidth and arithmetic, and with sums to exchange. The leaderboard does not state prompts:
`_PROMPTS` has the usual tokens of each task, of images those that fit dense models best.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median, quantiles
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from benchmarks._data import data_file
from benchmarks.harness import Figures, main
from services.kit.hardware import gpu_types
from services.kit.profiles.core.language import (
    FormulaSteps,
    LanguageProfile,
    step_power_w,
    step_s,
)
from services.kit.profiles.core.profile import SliceShape

_KV_KIB: Final = {
    "Llama-3.1-8B": 128,
    "Qwen3-14B": 160,
    "Qwen3-32B": 256,
    "Llama-3.1-70B": 320,
    "Llama-3.1-405B": 504,
    "gemma-3-12b": 64,  # five of six layers see 1024 tokens only
    "gemma-3-27b": 83,
    "Qwen3-235B-A22B": 188,
    "Qwen3-30B-A3B": 96,
    "Qwen3-Coder-30B-A3B": 96,
    "Qwen3-Coder-480B-A35B": 248,
    "DeepSeek": 69,  # one latent vector a layer
    "gpt-oss-120b": 38,  # every second layer sees 128 tokens only
    "gpt-oss-20b": 25,
    "Llama-4": 192,
    "Nemotron-Nano-12B": 24,  # 6 of 62 layers have attention
}
_PROMPTS: Final = {"lm-arena-chat": 100, "gpqa": 250, "sourcegraph-fim": 1500, "image-chat": 800}
"""Tasks, with the usual tokens of a prompt."""

_BYTES: Final = {"bfloat16": 2.0, "fp8": 1.0, "mxfp4": 0.54}
_FAMILIES: Final = {
    "dense": ("Dense Transformer", ("lm-arena-chat", "gpqa")),
    "experts": ("MoE", ("lm-arena-chat", "gpqa")),
    "experts, code": ("MoE", ("sourcegraph-fim",)),
    "hybrid": ("Mamba-Transformer Hybrid", ("image-chat",)),
}
"""Architecture as the leaderboard names it, and the tasks to compare."""

_FITTED: Final = ("dense", "experts")

_GPUS: Final = {  # name here: name there, idle and limit, W
    "h100-80gb": ("H100", 75.0, 700.0),
    "b200-180gb": ("B200", 140.0, 1000.0),
    "a100-80gb": ("a100-80gb", 60.0, 400.0),
}
_MAX_PROMPTS: Final = 4  # of a batch, in Splitwise: beyond, prompts waited in the engine
_MAX_PROMPT_TOKENS: Final = 2048  # of Splitwise's power: beyond, it is that of prompts
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sample:
    """A measurement.

    Attributes:
        gpu: GPU type.
        gpus: GPUs that share the model.
        profile: The model.
        sequences: Mean answers that were generated at the same time.
        context_tokens: Mean tokens of prompt and answer.
        step_s: Time of a step.
        power_w: Mean power of a GPU; 0: not measured.
        prompt_tokens, prompt_s: Of a batch of prompts; 0: not measured.
        taken_in: Tokens of prompts that a step takes in, on average.
    """

    gpu: str
    gpus: int
    profile: LanguageProfile
    sequences: float
    context_tokens: float
    step_s: float
    power_w: float
    prompt_tokens: float = 0.0
    prompt_s: float = 0.0
    taken_in: float = 0.0

    @property
    def shape(self) -> SliceShape:
        """All its GPUs as one."""
        _, idle_w, limit_w = _GPUS[self.gpu]
        known = gpu_types.load(self.gpu).performance
        return SliceShape(self.gpu, "whole", 7, self.gpus, 1, 0, idle_w, limit_w, known)


def measure() -> Sequence[Figures]:
    """Fit, and judge."""
    rows = [row for family in _FITTED for gpu in _GPUS for row in _rows(family, gpu)]
    return [
        Figures(
            "Relative errors on every second row, which the fit had not seen",
            rows,
            "Fitted: what this run finds. Shipped: the factors of the installed profile.",
        ),
        Figures(
            "J per token of the installed profile: relative errors on rows that were not fitted",
            [found for family in _FAMILIES for gpu in _GPUS for found in _per_token(family, gpu)],
            "Too low where the signed median is below 0. Code and the hybrid were not fitted.",
        ),
    ]


def samples(gpu: str, family: str = "dense") -> Iterator[Sample]:
    """Yield the measurements of a GPU type; of dense models, of experts, or hybrids."""
    if gpu == "a100-80gb":
        yield from _splitwise(gpu) if family == "dense" else ()
        return
    name, (architecture, tasks) = _GPUS[gpu][0], _FAMILIES[family]
    for row in _read("ml_energy_llm.csv"):
        known = [kib for part, kib in _KV_KIB.items() if part in row["model_id"]]
        of_it = row["architecture"] == architecture and row["gpu_model"] == name
        if not (known and of_it and row["task"] in tasks):
            continue
        sequences, answer = float(row["avg_batch_size"]), float(row["avg_output_len"])
        prompt, active = _PROMPTS[row["task"]], float(row["activated_params_billions"])
        yield Sample(
            gpu=gpu,
            gpus=int(row["num_gpus"]),
            profile=LanguageProfile.of(
                float(row["total_params_billions"]),
                active_parameters_b=active if architecture == "MoE" else None,
                bytes_per_parameter=_BYTES[row["weight_precision"]],
                kv_kib_per_token=float(known[0]),
            ),
            sequences=sequences,
            context_tokens=prompt + answer / 2,
            step_s=sequences / float(row["output_throughput_tokens_per_sec"]),
            power_w=float(row["avg_power_watts"]) / int(row["num_gpus"]),
            # Dense models' factors were fitted with the arithmetic of short prompts in them.
            taken_in=0.0 if family == "dense" else sequences * prompt / answer,
        )


def _splitwise(gpu: str) -> Iterator[Sample]:
    keys = ("tensor_parallel", "prompt_size", "batch_size", "token_size")
    rows = [row for row in _read("splitwise_perf_model.csv") if row["hardware"] == gpu]
    rows.sort(key=lambda row: [int(row[key]) for key in keys])
    for (gpus, prompt, batch, answer), same in groupby(
        rows, lambda row: [int(row[key]) for key in keys]
    ):
        found = list(same)
        power = median(float(row["average_power"]) for row in found)
        yield Sample(
            gpu=gpu,
            gpus=gpus,
            profile=LanguageProfile.of(70.0, kv_kib_per_token=320.0),
            sequences=batch,
            context_tokens=prompt + answer / 2,
            step_s=median(float(row["token_time"]) for row in found) / 1e3,
            power_w=0.0 if prompt > _MAX_PROMPT_TOKENS else power * _GPUS[gpu][2],
            prompt_tokens=batch * prompt if batch <= _MAX_PROMPTS else 0.0,
            prompt_s=median(float(row["prompt_time"]) for row in found) / 1e3,
        )


def _read(name: str) -> Iterator[dict[str, str]]:
    with data_file(f"gpu_power/{name}").open(newline="") as lines:
        yield from csv.DictReader(lines)


_LEAST: Final = {"step": (0, 0, 1, 1, 1), "power": (0, 0, 0), "prompt": (1, 0)}
"""Nothing is faster than the data sheet says."""

_Part = tuple[
    str,
    list[Sample],
    Callable[[Sample], float],
    Callable[[Sample], Array],
    Callable[[Sample], float],
    Callable[[Sample], float],
]
"""Name, rows, measured value, terms to fit, value without them, and value as shipped."""

# ---- fitting -----------------------------------------------------------------------------------


def _per_token(family: str, gpu: str) -> Iterator[dict[str, Any]]:
    """Yield the errors of J per token, of the rows that were not fitted."""
    found = [each for each in samples(gpu, family) if each.power_w]
    unseen = found[1::2] if family in _FITTED else found
    errors = [joules_per_token(each)[0] / joules_per_token(each)[1] - 1 for each in unseen]
    if errors:
        yield {
            "gpu": gpu,
            "family": family,
            "rows": len(errors),
            "median": median(map(abs, errors)),
            "p90": quantiles(map(abs, errors), n=10)[-1],
            "signed_median": median(errors),
        }


def joules_per_token(each: Sample) -> tuple[float, float]:
    """Return the energy of a token on all GPUs, of the profile and as measured, J."""
    modelled_w = _power(each) * each.shape.max_power_w
    part = each.gpus / each.sequences
    return part * modelled_w * _step_s(each), part * each.power_w * each.step_s


def _rows(family: str, gpu: str) -> Iterator[dict[str, Any]]:
    found, limit_w = list(samples(gpu, family)), _GPUS[gpu][2]
    powered = [each for each in found if each.power_w]
    prompted = [each for each in _splitwise(gpu) if each.prompt_tokens]
    prompted = prompted if family == "dense" else []
    parts: tuple[_Part, ...] = (
        ("step", found, lambda each: each.step_s, _step_terms, _prompts_s, _step_s),
        ("power", powered, lambda each: each.power_w / limit_w, _power_terms, _none, _power),
        ("prompt", prompted, lambda each: each.prompt_s, _prompt_terms, _empty_s, _prompt_s),
    )
    for what, rows, value, terms, given, shipped in parts:
        if not rows:
            continue
        values = np.array([value(each) for each in rows])
        matrix = np.array([terms(each) for each in rows])
        base = np.array([given(each) for each in rows])
        left = (1 - base / values)[::2]
        factors = lsq_linear(matrix[::2] / values[::2, None], left, (_LEAST[what], np.inf)).x
        unseen = list(zip(rows, values, strict=True))[1::2]
        errors = [abs(shipped(each) / found_ - 1) for each, found_ in unseen]
        yield {
            "gpu": gpu,
            "family": family,
            "what": what,
            "rows": len(unseen),
            "fitted_median": float(np.median(np.abs((base + matrix @ factors) / values - 1)[1::2])),
            "shipped_median": median(errors),
            "shipped_p90": quantiles(errors, n=10)[-1],
            "factors": " ".join(f"{factor:.4g}" for factor in factors),
        }


def _none(_: Sample) -> float:
    return 0.0


def _prompts_s(each: Sample) -> float:
    """Return the time of the prompts that a step takes in, as shipped."""
    return each.taken_in * each.profile.steps(each.shape).prompt_token_s


def _step_s(each: Sample) -> float:
    steps = each.profile.steps(each.shape)
    return step_s(steps, each.sequences, each.context_tokens, each.taken_in)


def _prompt_s(each: Sample) -> float:
    return step_s(each.profile.steps(each.shape), 0.0, 0.0, each.prompt_tokens)


def _power(each: Sample) -> float:
    """Return the power of one of the GPUs over its limit."""
    steps = each.profile.steps(each.shape)
    active_w = step_power_w(
        steps, each.sequences, each.context_tokens, each.taken_in, _step_s(each)
    )
    return (active_w / each.gpus + each.shape.context_power_w) / each.shape.max_power_w


def _step_terms(each: Sample) -> Array:
    flops_s, weights_s, kv_s = _ideal_s(each)
    fixed = (each.profile.settings.active_b / 70) ** (1 / 3)
    return np.array([fixed, fixed * (each.gpus - 1), weights_s, each.sequences * flops_s, kv_s])


def _power_terms(each: Sample) -> Array:
    flops_s, weights_s, kv_s = _ideal_s(each)
    peak_share = (each.sequences + each.taken_in) * flops_s / each.step_s
    return np.array([1.0, (weights_s + kv_s) / each.step_s, np.sqrt(peak_share)])


def _prompt_terms(each: Sample) -> Array:
    """Of the prompts' arithmetic, and of the sums that the GPUs exchange for each token."""
    size = (each.profile.settings.active_b / 70) ** (2 / 3)
    exchanged = each.prompt_tokens * (each.gpus - 1) * size
    return np.array([each.prompt_tokens * _ideal_s(each)[0], exchanged])


def _empty_s(each: Sample) -> float:
    """Return the time of a step without answers, as shipped."""
    return step_s(each.profile.steps(each.shape), 0.0, 0.0)


def _ideal_s(each: Sample) -> tuple[float, float, float]:
    """Return the data sheet's times of a token's arithmetic, the weights, keys and values, s."""
    steps = each.profile.steps(each.shape)
    assert isinstance(steps, FormulaSteps)
    kv_s = each.sequences * each.context_tokens * steps.kv_token_s
    return steps.flops_s, steps.weights_s(each.sequences + each.taken_in), kv_s


if __name__ == "__main__":
    main("token_profile", measure)
