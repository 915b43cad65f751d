"""The observed load as a scenario: `cinquefoil simulate` plans for it on the same GPUs. Pure."""

import re
from collections.abc import Iterator
from typing import Any, Final

from services.cli.observe.advice import parameters_of
from services.cli.observe.figures import Figures, ServerFigures
from services.kit.hardware import gpu_types

_LENGTH_S: Final = 1800.0
ROOM: Final = 1.2
"""Objective over the observed 95th percentile: what is there now is kept."""

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
    for each in figures.servers:
        parameters_b = parameters_of(each.model)
        counts = (each.requests, each.prompt_tokens, each.answer_tokens)
        if parameters_b is None or not each.rate_rps or not all(counts):
            continue
        yield model_name(each.model), _model(each, parameters_b)


def _model(each: ServerFigures, parameters_b: float) -> dict[str, Any]:
    requests = each.requests or 1.0
    slo = {"latency_s": _objective(each.latency_p95_s) or _LATENCY_S}
    for name, seen_s in (("ttft_s", each.first_token_p95_s), ("tpot_s", each.token_p95_s)):
        if (limit_s := _objective(seen_s)) is not None:
            slo[name] = limit_s
    profile = {
        "kind": "language",
        "parameters_b": parameters_b,
        "prompt_tokens": max((each.prompt_tokens or 0.0) / requests, 1.0),
        "answer_tokens": max((each.answer_tokens or 0.0) / requests, 1.0),
    }
    runtime = {"kind": "openai", "address": "127.0.0.1:8000", "model_name": each.model}
    variant = {"accuracy": 1.0, "load_s": 30.0, "profile": profile, "runtime": runtime}
    return {"slo": slo, "demand_rps": each.rate_rps, "variants": {"observed": variant}}


def _objective(seen_s: float | None) -> float | None:
    return ROOM * seen_s if seen_s else None


def model_name(model: str) -> str:
    """Return a name of the deployment file for a model."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:60] or "model"
