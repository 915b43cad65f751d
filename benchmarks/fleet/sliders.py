"""A dry run behind a slider of the console, with a large fleet.

    python -m benchmarks.fleet.sliders [--agents N] [--json FILE]

Carbon service, planner and console are processes of their own; agents of eight GPUs are light, in
this process (`peers.py`). One model with the five variants of the example deployment, at 480 req/s
for each node; `exact` plans. Each position is another one, requested over HTTP as by a page.
"""

import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx

from benchmarks._agent import beside
from benchmarks.fleet.__main__ import GPUS, serving, start
from benchmarks.fleet.peers import MODEL, Agent, Observer, Router
from benchmarks.harness import Figures, Report, options, publish
from services.kit.net import free_port

AGENTS: Final = 125
ROUNDS: Final = 40
RPS_PER_NODE: Final = 480.0
_VARIANTS: Final = {  # accuracy, multiply-accumulates per item, 1e9: as in cinquefoil.yaml
    "tree": (0.8373, 4.2),
    "linear": (0.9708, 8.8),
    "mlp-64": (0.9750, 24),
    "mlp-512": (0.9805, 53),
    "svc": (0.9917, 94),
}
_SLIDERS: Final = {"another weight of carbon": "carbon_weight", "another load": "demand"}


async def measured(count: int) -> list[dict[str, Any]]:
    """Measure the sliders of a console of `count` nodes."""
    agents = [Agent(f"node-{index}", index, GPUS) for index in range(count)]
    router, observer, listen = Router("router-0"), Observer(), f"127.0.0.1:{free_port()}"
    changed = {
        "planner": {"strategy": "exact", "objective": {"accuracy_floor": 0.95}},
        "console": {"listen": listen},
        "models": {MODEL: _model(RPS_PER_NODE * count)},
    }
    with TemporaryDirectory(prefix="bench-sliders-") as name:
        async with serving(Path(name), agents, **changed) as planners:
            addresses = [planner.listen for planner in planners]
            joining = (each.run(addresses) for each in agents)
            async with beside([router.run(addresses), observer.run(addresses), *joining]):
                await observer.until_joined()
                await observer.until_active()
                console = await start("console", Path(name) / "cinquefoil.yaml")
                try:
                    async with httpx.AsyncClient(base_url=f"http://{listen}", timeout=60) as client:
                        await _serves(client)
                        return [
                            {"gpus": count * GPUS, "slider": name, **await _slid(client, field)}
                            for name, field in _SLIDERS.items()
                        ]
                finally:
                    console.kill()
                    await console.wait()


def _model(demand_rps: float) -> dict[str, Any]:
    return {
        "slo": {"percentile": 95, "latency_s": 0.4},
        "demand_rps": demand_rps,
        "variants": {
            name: {
                "file": f"{name}.onnx",
                "accuracy": accuracy,
                "profile": {"kind": "analytic", "gmacs_per_item": gmacs},
            }
            for name, (accuracy, gmacs) in _VARIANTS.items()
        },
    }


async def _serves(client: httpx.AsyncClient) -> None:
    """Return when the console answers."""
    async with asyncio.timeout(60):
        while True:
            try:
                (await client.get("/api/now")).raise_for_status()
            except httpx.ConnectError:
                await asyncio.sleep(0.1)
            else:
                return


async def _slid(client: httpx.AsyncClient, field: str) -> dict[str, float]:
    """Move a slider; return how long answers take, and how many segments the last plan has."""
    times_ms, segments = [], 0
    for n in range(ROUNDS):
        began_s = time.perf_counter()
        answer = await client.get("/api/what-if", params={field: 0.05 + n * 0.02})
        answer.raise_for_status()
        times_ms.append((time.perf_counter() - began_s) * 1e3)
        segments = len(answer.json()["plan"]["segments"])
    times_ms.sort()
    return {
        "median_ms": times_ms[ROUNDS // 2],
        "p95_ms": times_ms[int(ROUNDS * 0.95)],
        "segments": segments,
    }


def main() -> None:
    """Run it."""
    parser = options("sliders")
    parser.add_argument("--agents", type=int, default=AGENTS, help=f"default: {AGENTS}")
    arguments = parser.parse_args()
    rows = asyncio.run(measured(arguments.agents))
    title = "A dry run behind a slider, with a large fleet"
    publish("sliders", Report([Figures(title, rows)], {"sliders": rows}), arguments)


if __name__ == "__main__":
    main()
