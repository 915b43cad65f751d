"""A day of history as `/api/history` answers, made up: two models, a grid that swings, 14 plans."""

import math
import time
from collections.abc import Sequence
from typing import Any

_STEP_S = 300
_VARIANTS = {"digits": ("tree", "mlp-64", "svc"), "chat": ("small", "large")}


def history(gpus: Sequence[str], hours: int = 24, until_s: float | None = None) -> dict[str, Any]:
    """Return the history of some GPUs, by UUID, over the last hours."""
    end = until_s or time.time()
    count = hours * 3600 // _STEP_S
    times = [end - (count - n) * _STEP_S for n in range(count)]

    def wave(at: float, low: float, high: float) -> float:
        return low + (high - low) * (0.5 + 0.5 * math.sin(at / 86400 * 2 * math.pi * 2))

    clean = [wave(at, 0, 1) for at in times]
    ahead = [end + n * 1800 for n in range(49)]
    expected = [wave(at, 90, 260) for at in ahead]
    base_w = [230.0 + 20 * math.sin(n / 7) for n in range(count)]
    measured_w = [watts * (0.9 - 0.5 * dirty) for watts, dirty in zip(base_w, clean, strict=True)]
    measured_w[20:24] = [None] * 4  # type: ignore[list-item]  # the planner was down
    return {
        "since_s": times[0],
        "until_s": end,
        "step_s": _STEP_S,
        "times_s": times,
        "zones": [
            {
                "zone": "US-CAL",
                "intensity_gco2e_per_kwh": [wave(at, 90, 260) for at in times],
                "forecast": {
                    "times_s": ahead,
                    "expected": expected,
                    "low": [v - n for n, v in enumerate(expected)],
                    "high": [v + n for n, v in enumerate(expected)],
                },
            }
        ],
        "power": {"measured_w": measured_w, "base_w": base_w},
        "emissions": {"measured_gco2e_per_h": measured_w, "base_gco2e_per_h": base_w},
        "models": [_model(name, count, phase) for phase, name in enumerate(_VARIANTS)],
        "gpus": [
            {"uuid": uuid, "name": f"node-a/{n}", "compute_slices": 7, "power_w": measured_w}
            for n, uuid in enumerate(gpus)
        ],
        "plans": list(_plans(times, clean, gpus)),
        "saved": {"today_gco2e": 12.0, "low_gco2e": 11.0, "high_gco2e": 13.0, "share": 0.4},
    }


def _model(name: str, count: int, phase: int) -> dict[str, Any]:
    objective_s = 0.4 + phase
    return {
        "model": name,
        "percentile": 95,
        "objective_s": objective_s,
        "latency_s": [
            objective_s * (0.6 + 0.3 * math.sin(n / 11 + phase) + (n % 97 == 0) * 0.4)
            for n in range(count)
        ],
        "requests_rps": [40 + 30 * math.sin(n / 30 + phase) + n % 3 for n in range(count)],
        "within": [0.99] * count,
        "accuracy": [0.97] * count,
    }


def _plans(times: Sequence[float], dirty: Sequence[float], gpus: Sequence[str]) -> Any:
    every = max(1, len(times) // 14)
    for n, at in enumerate(times[::every]):
        level = dirty[n * every]
        variant = _VARIANTS["digits"][0 if level > 0.66 else 1 if level > 0.33 else 2]
        slices = [_slice(gpus[0], 0, 4, "digits", variant), _slice(gpus[0], 4, 3, "chat", "large")]
        if level < 0.33 and len(gpus) > 1:
            slices += [_slice(gpus[1], 0, 7, "digits", "svc")]
        yield {
            "version": n + 1,
            "since_s": at,
            "until_s": [*times[every::every], times[-1] + _STEP_S][n],
            "cause": f"the grid went to {90 + 170 * level:.0f} gCO₂e/kWh",
            "sentence": f"Plan {n + 1} at {time.strftime('%H:%M', time.gmtime(at))}: grid at "
            f"{90 + 170 * level:.0f} g/kWh, digits moved to {variant} on one slice.",
            "slices": slices,
        }


def _slice(gpu: str, start: int, cells: int, model: str, variant: str) -> dict[str, Any]:
    return {
        "gpu": gpu,
        "start": start,
        "compute_slices": cells,
        "placement": f"{cells}g@{start}",
        "model": model,
        "variant": variant,
        "accuracy": 0.97,
    }
