"""A language model is profiled token by token, on this machine's cores."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.cli.profile import run
from services.cli.profile.request import Request
from services.gpuagent.profiling.core.samples import Effort
from services.kit import config
from services.kit.config.loader import load
from services.kit.net import free_port
from services.kit.profiles.factory import load_profile
from services.kit.profiles.table_file import read_measurements
from services.planner.adapters.wire.convert_node import node_from
from services.planner.core.model import Model, Pool, Variant
from services.planner.core.problem.catalog import Place, measure
from tests.support.gpuagent.agent_service import NODE, agent, deployment, planning
from tests.support.gpuagent.step_errors import errors
from tests.support.worker.language_worker import RESOURCE, SHA256, needs_llama

CORE = min(os.sched_getaffinity(0))
VARIANT = {
    "accuracy": 0.3,
    "runtime": {
        "kind": "generative", "resource": RESOURCE, "sha256": SHA256, "context_tokens": 512,
    },
    "profile": {
        "kind": "language", "parameters_b": 0.135, "prompt_tokens": 16, "answer_tokens": 40,
        "memory_mib_per_item": 10,
    },
}  # fmt: skip


def settings_of(folder: Path, port: int, **node: Any) -> config.Deployment:
    """Return a deployment of one core and one language model."""
    made = deployment(folder, folder / "no-file", f"127.0.0.1:{port}").model_dump(mode="json")
    made["nodes"][NODE] |= {"simulated": None, "cpu": {"cores": [CORE]}, **node}
    made["models"]["m"]["variants"]["v"] = VARIANT
    made["models"]["m"]["slo"] = {"latency_s": 600}
    return config.Deployment.model_validate(made)


@needs_llama
@pytest.mark.timeout(180)
async def test_prompts_and_steps_are_measured_and_the_planner_reads_them(tmp_path: Path) -> None:
    """Two texts at a time; the catalog has what was measured, as far as few rows determine it."""
    async with planning() as (planner, port):
        settings = settings_of(tmp_path, port, listen=f"127.0.0.1:{free_port()}")
        path = tmp_path / "cinquefoil.yaml"
        path.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
        async with agent(settings):
            await planner.until(lambda: any(gpu.type.name == "cpu-1" for gpu in planner.node.gpus))
            request = Request(
                models=("m",),
                batch_sizes=(2,),
                prompts=(16,),
                out=tmp_path / "profiles",
                save=True,
                effort=Effort(0.0, 0, 0.0, 2, 60.0),
            )
            (device,) = node_from(planner.node).gpus
            await run.profile(path, NODE, request)

    rows = read_measurements(tmp_path / "profiles" / "m.v.cpu-1.csv")
    (row,) = rows
    assert (row.batch_size, row.prompt_tokens, row.batches) == (2, 16, 2)
    assert row.ran
    assert row.context_tokens > 16
    assert row.step_j > 0 < row.prompt_token_j

    settings_after = load(path).models["m"].variants["v"].profile
    assert isinstance(settings_after, config.LanguageProfile)
    (steps,) = settings_after.measured
    assert (steps.gpu, steps.slice) == ("cpu-1", "1c")
    assert max(errors(rows, steps)) < 0.01
    variant = Variant("v", 0.3, load_profile(settings_after))
    here = Place(
        Model("m", 600.0, 95.0, 1.0, (variant,)),
        variant,
        Pool(device.type, "Z", 1.0, 1.0),
        device.type.geometry.kind("1c"),
    )
    (kind,) = measure(here, (2,), 1)
    assert kind.token_times is not None
    expected_s = 2 * 16 * row.prompt_token_s + 40 * row.step_s
    assert kind.latency_s == pytest.approx(expected_s, rel=0.2)
