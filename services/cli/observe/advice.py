"""Savings of each further step, from what was observed: ranges, each with its method. Pure.

A step whose figures would be guesses says what is missing and has no range.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from services.cli.observe.figures import Figures, GpuFigures, ServerFigures
from services.kit.hardware.boards import table_of
from services.kit.hardware.gpu_types import GpuModel
from services.kit.mig import WHOLE
from services.kit.profiles.core.language import LanguageProfile
from services.kit.profiles.core.profile import SliceShape

_BUSY: Final = 0.85
"""Share of the time in which kernels may run at a lower clock, so that queues stay short."""

_FULL_MEMORY: Final = 0.95
_FULL_TIME: Final = 0.7
"""Shares of a GPU's memory and time up to which workloads are put together."""

_TOKENS: Final = LanguageProfile.of(1.0).settings.decode_sensitivity
_FITS: Final = (0.5, 2.0)
"""Metered energy per token over the profile's, within which the profile is used for ratios."""

_WINDOW_H: Final = 8
_PARAMETERS: Final = re.compile(r"(?<![\w.])[aA]?(\d+(?:\.\d+)?)\s?([bBmM])(?![a-zA-Z])")
_FOUR_BITS: Final = re.compile(r"(?i)(int4|awq|gptq|q4|4bit|nf4|mxfp4)")
_EIGHT_BITS: Final = re.compile(r"(?i)(int8|fp8|q8|w8a8|8bit)")


@dataclass(frozen=True, slots=True)
class Step:
    """A step and its saving.

    Attributes:
        name: Of the step.
        action: What would be done.
        low_j, high_j: Range of the saving over the observed time, J; None: not determined.
        method: Origin of the range; where there is none: what is missing.
        cost: What it costs requests; "": nothing.
        carbon_share: The range is of emissions alone, as shares of all; energy stays.
    """

    name: str
    action: str
    low_j: float | None
    high_j: float | None
    method: str
    cost: str = ""
    carbon_share: tuple[float, float] | None = None


def advise(figures: Figures, day_ahead: Sequence[float]) -> tuple[Step, ...]:
    """Return the steps that apply, by name.

    Args:
        figures: What was observed.
        day_ahead: Forecast of the intensity in equal steps over 24 hours, gCO2e/kWh; (): none.
    """
    return (
        _clocks(figures),
        _parking(figures),
        _consolidation(figures),
        _variants(figures),
        _time(figures, day_ahead),
    )


# ---- clocks ------------------------------------------------------------------------------------


def _clocks(figures: Figures) -> Step:
    """Lower SM clocks: active energy falls by the clock curve of the GPU's class."""
    low_j = high_j = 0.0
    slower, names, curves = 0.0, [], set()
    for gpu in figures.gpus:
        table = table_of(gpu.product_name, gpu.memory_bytes)
        active_j = gpu.energy_j - gpu.idle_j
        if table is None or not table.clock_lock or active_j <= 0:
            continue
        curve = table.clock_curve
        room = [
            ratio
            for ratio in (each / 20 for each in range(8, 21))
            if ratio <= gpu.clock_ratio and gpu.busy * curve.stretch(1.0, ratio) <= _BUSY
        ]
        if not room:
            continue
        now = gpu.clock_ratio
        found = []
        for sensitivity in (1.0, _TOKENS):
            ratio = curve.thriftiest(sensitivity, room)
            before = curve.energy_ratio(sensitivity, now)
            found.append(active_j * (1 - curve.energy_ratio(sensitivity, ratio) / before))
            if sensitivity == 1.0:
                slower = max(slower, curve.stretch(1.0, ratio) / curve.stretch(1.0, now) - 1)
        low_j, high_j = low_j + max(min(found), 0.0), high_j + max(*found, 0.0)
        names.append(str(gpu.index))
        curves.add(curve.measured_on)
    if not names:
        return Step(
            "clocks",
            "lower the SM clock while objectives hold",
            None,
            None,
            "no GPU with a known clock curve was active, or none has time to spare",
        )
    return Step(
        "clocks",
        f"lower the SM clock of GPU {', '.join(names)} while objectives hold",
        low_j,
        high_j,
        f"clock curve measured on {', '.join(sorted(curves))}: work that follows the clock fully, "
        "to work that follows it as tokens of answers do",
        f"kernels take up to {100 * slower:.0f} % longer",
    )


# ---- parking and consolidation -----------------------------------------------------------------


def _parking(figures: Figures) -> Step:
    """Servers that sleep while nothing is requested: a GPU without a context draws less."""
    high_j = sum(gpu.parkable_s * max(gpu.idle_w - gpu.off_w, 0.0) for gpu in figures.gpus)
    quiet_s = sum(gpu.parkable_s for gpu in figures.gpus)
    action = "let servers sleep while nothing is requested"
    if not quiet_s:
        return Step(
            "elasticity", action, None, None, "no GPU was held without work for over a minute"
        )
    return Step(
        "elasticity",
        action,
        0.0,
        high_j,
        f"{quiet_s:.0f} GPU-seconds without work beyond the first minute of each, times the power "
        "that a context keeps up; none, if each is too short for the servers' boot time",
        "the first request after it waits for the boot",
    )


def _consolidation(figures: Figures) -> Step:
    """Fewer GPUs: what is freed is idle, or off."""
    action = "put workloads together on fewer GPUs"
    held = [gpu for gpu in figures.gpus if gpu.held_bytes or gpu.busy > 0]
    if len(held) < 2:
        return Step("consolidation", action, None, None, "needs two GPUs that are held")
    if any(not gpu.held_bytes for gpu in held):
        missing = "the driver does not say how much memory processes hold"
        return Step("consolidation", action, None, None, missing)
    needed, freed = _packed(held)
    if not freed:
        reason = "memory held and busy time leave no GPU free"
        return Step("consolidation", action, 0.0, 0.0, reason)
    seconds = figures.observed_s
    low_j = sum(max(gpu.idle_w - gpu.off_w, 0.0) * seconds for gpu in freed)
    high_j = sum(gpu.idle_j for gpu in freed)
    return Step(
        "consolidation",
        f"put workloads together on {needed} of {len(held)} GPUs",
        low_j,
        high_j,
        f"first fit by memory held (up to {_FULL_MEMORY:.0%}) and busy time (up to "
        f"{_FULL_TIME:.0%}); the freed GPUs stay on without a context, to off",
        "neighbours share the SMs' time",
    )


def _packed(held: Sequence[GpuFigures]) -> tuple[int, list[GpuFigures]]:
    """Return the GPUs that are needed, and those that are freed, by first fit, largest first."""
    kept: list[tuple[GpuFigures, float, float]] = []
    freed = []
    for gpu in sorted(held, key=lambda each: -each.held_bytes):
        for at, (host, memory, busy) in enumerate(kept):
            more = gpu.held_bytes / host.memory_bytes
            fits = memory + more <= _FULL_MEMORY and busy + gpu.busy <= _FULL_TIME
            if fits and host.type == gpu.type:
                kept[at] = host, memory + more, busy + gpu.busy
                freed.append(gpu)
                break
        else:
            kept.append((gpu, gpu.held_bytes / gpu.memory_bytes, gpu.busy))
    return len(kept), freed


# ---- variants ----------------------------------------------------------------------------------


def _variants(figures: Figures) -> Step:
    """Reduced precision of language models, by their profile."""
    action = "answer with 8-bit or 4-bit variants where the accuracy floor allows it"
    low_j = high_j = 0.0
    names, reasons = [], []
    for server in figures.servers:
        found = _variant(figures, server)
        if isinstance(found, str):
            reasons.append(f"{server.model or server.url}: {found}")
            continue
        low_j, high_j = low_j + found[0], high_j + found[1]
        names.append(server.model)
    if not names:
        why = "; ".join(reasons) or "no server's metrics were found (--server names one)"
        return Step("variants", action, None, None, why)
    return Step(
        "variants",
        f"{action}: {', '.join(names)}",
        low_j,
        high_j,
        "language profile by parameters and GPU type, at the observed requests in progress: "
        "8 bits to 4 bits a parameter, scaled by what was metered",
        "accuracy, which is not known here: measure it (cinquefoil eval)",
    )


def _variant(figures: Figures, server: ServerFigures) -> tuple[float, float] | str:
    """Return the saving with 8 and with 4 bits, J; else what is missing."""
    if server.j_per_token is None or not server.active_j:
        return "its tokens and its energy are not both known"
    parameters_b = parameters_of(server.model)
    if parameters_b is None:
        return "its name does not say how many parameters it has"
    if len(server.gpus) != 1:
        return "it runs on several GPUs"
    gpu = next(each for each in figures.gpus if each.index == server.gpus[0])
    shape = shape_of(figures.models[gpu.uuid])
    bits = bits_of(server.model)
    answers = max(round(server.mean_running), 1)
    per_token = _profile_j_per_token(parameters_b, server, shape, answers)
    modelled = per_token(bits / 8)
    if not modelled or not _FITS[0] <= server.j_per_token / modelled <= _FITS[1]:
        ratio = server.j_per_token / modelled if modelled else 0.0
        return (
            f"its profile does not fit: metered energy per token is {ratio:.2g} times the "
            "profile's (measure one: cinquefoil profile)"
        )
    savings = [
        server.active_j * max(1 - per_token(fewer / 8) / modelled, 0.0)
        for fewer in (8, 4)
        if fewer < bits
    ]
    return (min(savings), max(savings)) if savings else "it has four bits already"


def _profile_j_per_token(
    parameters_b: float, server: ServerFigures, shape: SliceShape, answers: int
) -> Callable[[float], float]:
    prompts, tokens, requests = server.prompt_tokens, server.answer_tokens, server.requests
    lengths = {}
    if requests and prompts and tokens:
        lengths = {
            "prompt_tokens": max(prompts / requests, 1.0),
            "answer_tokens": max(tokens / requests, 1.0),
        }

    def energy(bytes_per_parameter: float) -> float:
        profile = LanguageProfile.of(
            parameters_b,
            bytes_per_parameter=bytes_per_parameter,
            memory_mib_per_item=0.0,
            **lengths,
        )
        cost = profile.batch(shape, answers, 1)
        made = answers * profile.settings.answer_tokens
        return cost.energy_j / made if cost is not None else 0.0

    return energy


def shape_of(model: GpuModel) -> SliceShape:
    """Return a whole GPU as profiles need it."""
    return SliceShape(
        gpu=model.name,
        profile=WHOLE,
        compute_slices=1,
        sm_count=model.sm_count,
        gpu_sm_count=model.sm_count,
        memory_bytes=model.memory_bytes,
        context_power_w=model.context_power_w,
        max_power_w=model.max_power_w,
        performance=model.performance,
    )


def parameters_of(name: str) -> float | None:
    """Return the parameters that a model's name says, 1e9: "Qwen3-8B", "SmolLM2-135M"."""
    found = list(_PARAMETERS.finditer(re.sub(r"[-_/]", " ", name)))
    if len(found) != 1:
        return None
    number, unit = float(found[0].group(1)), found[0].group(2).lower()
    parameters_b = number if unit == "b" else number / 1000
    return parameters_b if 0 < parameters_b < 10_000 else None


def bits_of(name: str) -> int:
    """Return the bits of a parameter that a model's name says; 16: it says none."""
    if _FOUR_BITS.search(name):
        return 4
    return 8 if _EIGHT_BITS.search(name) else 16


# ---- time --------------------------------------------------------------------------------------


def _time(figures: Figures, day_ahead: Sequence[float]) -> Step:
    """Requests that can wait, at the cleanest time of the next hours."""
    action = f"let one request in ten wait for cleaner electricity, up to {_WINDOW_H} hours"
    if figures.gco2e_per_kwh is None:
        return Step("time", action, None, None, "no intensity: --zone or --intensity")
    if len(day_ahead) < 2 or max(day_ahead) <= 0:
        return Step("time", action, None, None, "needs a zone with a forecast (--zone)")
    steps = max(round(len(day_ahead) * _WINDOW_H / 24), 1)
    windows = [day_ahead[at : at + steps + 1] for at in range(len(day_ahead) - steps)]
    if not windows:
        return Step("time", action, None, None, "the zone's forecast is shorter than a day")
    now = sum(each[0] for each in windows)
    best = sum(min(each) for each in windows)
    share = 0.1 * (1 - best / now) if now else 0.0
    return Step(
        "time",
        action,
        None,
        None,
        f"the zone's forecast of the next day, the cleanest step of each {_WINDOW_H} hours; which "
        "requests can wait is not observed: none, to one in ten",
        "these requests wait",
        carbon_share=(0.0, share),
    )


def shares(step: Step, figures: Figures) -> Iterator[float]:
    """Yield the range of a step as shares of all energy, or of all emissions."""
    if step.carbon_share is not None:
        yield from step.carbon_share
    elif step.low_j is not None and step.high_j is not None and figures.energy_j > 0:
        yield step.low_j / figures.energy_j
        yield step.high_j / figures.energy_j
