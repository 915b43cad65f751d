"""The observed load as a scenario: `cinquefoil simulate` plans for it on the same GPUs. Pure."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from services.cli.observe.advice import parameters_of, shape_of
from services.cli.observe.figures import Figures, ServerFigures
from services.kit.hardware import gpu_types
from services.kit.profiles.core.language import LanguageProfile
from services.kit.profiles.core.profile import SliceShape

_LENGTH_S: Final = 1800.0
ROOM: Final = 1.2
"""Objective over the observed 95th percentile: what is there now is kept."""

WAITS: Final = 2.0
"""Objective over the time of an answer or prompt alone: plans keep half of it for waiting."""

_LATENCY_S: Final = 60.0
"""Objective of a server that does not say its latencies, s."""


def scenario(figures: Figures) -> dict[str, Any] | None:
    """Return a scenario file of the servers whose load and size are known; None: there is none.

    Args:
        figures: What was observed.
    """
    models = dict(_models(figures))
    known = set(gpu_types.names("nvidia"))
    gpus = [gpu.type for gpu in figures.gpus if gpu.type in known]
    if not models or not gpus or figures.gco2e_per_kwh is None:
        return None
    source = {"kind": "static", "intensity_gco2e_per_kwh": figures.gco2e_per_kwh}
    return {
        "version": "v1",
        "duration_s": _LENGTH_S,
        "deployment": {
            "version": "v1",
            "carbon": {"zones": {"here": {"source": source}}},
            "nodes": {"here": {"zone": "here", "simulated": gpus}},
            "models": models,
            "planner": {"clock_ratios": [1.0, 0.9, 0.8, 0.7, 0.6]},
        },
        "policies": ["base", "exact"],
    }


def _models(figures: Figures) -> Iterator[tuple[str, dict[str, Any]]]:
    shapes = [shape_of(each) for each in figures.models.values()]
    for each in figures.servers:
        parameters_b = parameters_of(each.model)
        counts = (each.requests, each.prompt_tokens, each.answer_tokens)
        if parameters_b is None or not each.rate_rps or not all(counts):
            continue
        yield model_name(each.model), _model(each, parameters_b, shapes)


def _model(
    each: ServerFigures, parameters_b: float, shapes: Sequence[SliceShape]
) -> dict[str, Any]:
    requests = each.requests or 1.0
    lengths = {
        "prompt_tokens": max((each.prompt_tokens or 0.0) / requests, 1.0),
        "answer_tokens": max((each.answer_tokens or 0.0) / requests, 1.0),
    }
    profile = {"kind": "language", "parameters_b": parameters_b, **lengths}
    slo = dict(_objectives(each, LanguageProfile.of(parameters_b, **lengths), shapes))
    runtime = {"kind": "openai", "address": "127.0.0.1:8000", "model_name": each.model}
    variant = {"accuracy": 1.0, "load_s": 30.0, "profile": profile, "runtime": runtime}
    return {"slo": slo, "demand_rps": each.rate_rps, "variants": {"observed": variant}}


def _objectives(
    each: ServerFigures, profile: LanguageProfile, shapes: Sequence[SliceShape]
) -> Iterator[tuple[str, float]]:
    """Yield what was seen, and no less than a plan can keep by the profile; with room.

    What was seen may be faster, as where prompts were cached, and the simulator refuses a model
    that no GPU can serve in time.
    """
    costs = [cost for shape in shapes if (cost := profile.batch(shape, 1, 1)) is not None]
    times = [found for shape in shapes if (found := profile.token_times(shape, 1, 1)) is not None]
    whole_s = min((cost.latency_s for cost in costs), default=0.0)
    first_s = min((found.first_token_s for found in times), default=0.0)
    token_s = min((found.token_s for found in times), default=0.0)
    yield "latency_s", ROOM * max(each.latency_p95_s or 0.0, WAITS * whole_s) or _LATENCY_S
    if each.first_token_p95_s:
        yield "ttft_s", ROOM * max(each.first_token_p95_s, WAITS * first_s)
    if each.token_p95_s:
        yield "tpot_s", ROOM * max(each.token_p95_s, token_s)


def model_name(model: str) -> str:
    """Return a name of the deployment file for a model."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:60] or "model"
