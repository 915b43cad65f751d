"""Interactive conversations on one H100, alone and beside more waiting ones than it has room for.

Step by step in virtual time: the router's own rule of headroom decides how many run beside them.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml

from benchmarks.waiting.release import ANSWER, INTERACTIVE_RPS, PROMPT
from services.simulator.loader import Setting, read
from services.simulator.report.figures import TextFigures, figures
from services.simulator.run import draw_arrivals, simulate

LOADS: Final = (0.3, 0.5, 0.7, 1.0)
"""Of the interactive load within the objectives."""

_LENGTH_S: Final = 150.0
_WAITING_RPS: Final = 12.0


def measure(loads: tuple[float, ...] = LOADS) -> list[dict[str, Any]]:
    """Return attainment, and the 99th percentiles beside waiting work over those without."""
    rows = []
    for load in loads:
        alone, beside = (_figures(load, waiting_rps) for waiting_rps in (0.0, _WAITING_RPS))
        rows.append(
            {
                "load": load,
                "attainment_alone": alone.in_time,
                "attainment_beside": beside.in_time,
                "ttft_p99_ratio": (beside.ttft_p99_s or 0.0) / (alone.ttft_p99_s or 1.0),
                "tpot_p99_ratio": (beside.tpot_p99_s or 0.0) / (alone.tpot_p99_s or 1.0),
            }
        )
    return rows


def _figures(load: float, waiting_rps: float) -> TextFigures:
    with TemporaryDirectory() as folder:
        setting = _setting(Path(folder), load, waiting_rps)
    seen = simulate(setting, setting.scenario.policies[0], draw_arrivals(setting))
    texts = figures(seen).models["chat"].texts
    if texts is None:
        raise TypeError("the model generates text")
    return texts


def _setting(folder: Path, load: float, waiting_rps: float) -> Setting:
    lengths = {"prompt_tokens": round(PROMPT), "answer_tokens": round(ANSWER)}
    variant = {
        "accuracy": 0.6,
        "profile": {"kind": "language", "parameters_b": 8, **lengths},
        "runtime": {"kind": "openai", "command": ["vllm", "serve", "--port", "{port}"]},
    }
    model = {
        "slo": {"percentile": 99, "latency_s": 60, "ttft_s": 1.0, "tpot_s": 0.03},
        "demand_rps": INTERACTIVE_RPS,
        "variants": {"8b": variant},
    }
    constant = {"kind": "constant", "rate_rps": INTERACTIVE_RPS * load}
    static = {"source": {"kind": "static", "intensity_gco2e_per_kwh": 200}}
    document: dict[str, Any] = {
        "version": "v1",
        "duration_s": _LENGTH_S,
        "detail": "full",
        "seed": 1,
        "policies": [{"strategy": "exact", "waiting": "at_once"}],
        "deployment": {
            "version": "v1",
            "carbon": {"zones": {"Z": static}},
            "nodes": {"n": {"zone": "Z", "simulated": ["h100-80gb"]}},
            "planner": {"batch_sizes": [1, 8, 32, 64], "clock_ratios": [1.0]},
            "models": {"chat": model},
        },
        "load": {"chat": constant},
        "texts": {"chat": lengths},
    }
    if waiting_rps:
        document["waiting"] = {"chat": {"load": {**constant, "rate_rps": waiting_rps}}}
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(document))
    return read(path)
