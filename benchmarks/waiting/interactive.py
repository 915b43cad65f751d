"""Interactive conversations on one H100, alone and beside more waiting ones than it has room for.

Step by step in virtual time: the router's own rule of headroom decides how many run beside them.
Both runs of a seed have the same conversations. After a jump they come at the full load: the
router learnt beside three tenths of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml

from benchmarks.harness import in_processes
from benchmarks.waiting.release import ANSWER, INTERACTIVE_RPS, PROMPT
from services.simulator.loader import Setting, read
from services.simulator.report.figures import TextFigures, figures
from services.simulator.run import draw_arrivals, simulate

Loads = tuple[float, ...]
"""Parts of the interactive load within the objectives, each for the same time."""

LOADS: Final[tuple[Loads, ...]] = ((0.3,), (0.5,), (0.7,), (1.0,), (0.3, 1.0))
SEEDS: Final = 8

_LENGTH_S: Final = 300.0
_WAITING_RPS: Final = 12.0


def measure(
    loads: Sequence[Loads] = LOADS, seeds: int = SEEDS, first_seed: int = 1
) -> list[dict[str, Any]]:
    """Return what attainment changes beside waiting work, in points, and both 99th percentiles."""
    drawn = range(first_seed, first_seed + seeds)
    pairs = in_processes(_pair, [(each, seed) for each in loads for seed in drawn])
    return [_row(each, [pairs[each, seed] for seed in drawn]) for each in loads]


def _row(loads: Loads, pairs: Sequence[tuple[TextFigures, TextFigures]]) -> dict[str, Any]:
    points = [100 * ((beside.in_time or 0.0) - (alone.in_time or 0.0)) for alone, beside in pairs]
    first = [(beside.ttft_p99_s or 0.0) / (alone.ttft_p99_s or 1.0) for alone, beside in pairs]
    token = [(beside.tpot_p99_s or 0.0) / (alone.tpot_p99_s or 1.0) for alone, beside in pairs]
    return {
        "load": " then ".join(f"{100 * each:.0f} %" for each in loads),
        "attainment_alone": fmean(alone.in_time or 0.0 for alone, _ in pairs),
        "attainment_beside": fmean(beside.in_time or 0.0 for _, beside in pairs),
        "points": fmean(points),
        "points_least": min(points),
        "points_most": max(points),
        "ttft_p99_ratio": fmean(first),
        "tpot_p99_ratio": fmean(token),
    }


def _pair(run: tuple[Loads, int]) -> tuple[TextFigures, TextFigures]:
    """Return the figures of a seed's conversations alone, and beside waiting work."""
    loads, seed = run
    return _figures(loads, seed, 0.0), _figures(loads, seed, _WAITING_RPS)


def _figures(loads: Loads, seed: int, waiting_rps: float) -> TextFigures:
    with TemporaryDirectory() as folder:
        setting = _setting(Path(folder), loads, seed, waiting_rps)
    seen = simulate(setting, setting.scenario.policies[0], draw_arrivals(setting))
    texts = figures(seen).models["chat"].texts
    if texts is None:
        raise TypeError("the model generates text")
    return texts


def _setting(folder: Path, loads: Loads, seed: int, waiting_rps: float) -> Setting:
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
    rates = [str(INTERACTIVE_RPS * each) for each in loads]
    (folder / "rates.csv").write_text("\n".join(["rps", *rates]))
    steps = {"kind": "trace", "path": "rates.csv", "step_s": _LENGTH_S / len(loads)}
    static = {"source": {"kind": "static", "intensity_gco2e_per_kwh": 200}}
    document: dict[str, Any] = {
        "version": "v1",
        "duration_s": _LENGTH_S,
        "detail": "full",
        "seed": seed,
        "policies": [{"strategy": "exact", "waiting": "at_once"}],
        "deployment": {
            "version": "v1",
            "carbon": {"zones": {"Z": static}},
            "nodes": {"n": {"zone": "Z", "simulated": ["h100-80gb"]}},
            "planner": {"batch_sizes": [1, 8, 32, 64], "clock_ratios": [1.0]},
            "models": {"chat": model},
        },
        "load": {"chat": steps},
        "texts": {"chat": lengths},
    }
    if waiting_rps:
        constant = {"kind": "constant", "rate_rps": waiting_rps}
        document["waiting"] = {"chat": {"load": constant}}
    path = folder / "scenario.yaml"
    path.write_text(yaml.safe_dump(document))
    return read(path)
