"""`cinquefoil gpuagent show|export|diff|apply` against a real agent of simulated GPUs."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from services.kit.net import free_port
from tests.support.cli.fake_services import cinquefoil
from tests.support.gpuagent.agent_service import GPU, NODE, Agent, agent, deployment
from tests.support.worker.worker_process import save_model


@dataclass
class Console:
    """A shell on the node. Attributes: agent, config (deployment file), file (desired state)."""

    agent: Agent
    config: Path
    file: Path

    async def run(self, command: str, *options: str) -> tuple[int, str]:
        """Run a command on the desired state; return its status and all it said."""
        ended = await cinquefoil("gpuagent", command, self.file, "-c", self.config, *options)
        return ended.status, ended.out + ended.err


@asynccontextmanager
async def console(folder: Path, *, with_model: bool = True) -> AsyncIterator[Console]:
    """Run an agent that no planner joins."""
    model = save_model(folder / "tiny.onnx") if with_model else folder / "none.onnx"
    listen = f"127.0.0.1:{free_port()}"
    settings = deployment(folder, model, "127.0.0.1:1", address=listen)
    node = settings.nodes[NODE].model_copy(update={"listen": listen})
    settings = settings.model_copy(update={"nodes": {NODE: node}})
    config = folder / "cinquefoil.yaml"
    config.write_text(yaml.safe_dump(settings.model_dump(mode="json")))
    async with agent(settings) as running:
        yield Console(running, config, folder / "desired.yaml")


DESIRED = f"""
version: v1
gpus:
  - uuid: {GPU}
    slices: [3g.20gb@0, 2g.10gb@4]
    clock_mhz: 990
    segments:
      - {{id: s-0, slice: 3g.20gb@0, model: m, variant: v, batch_size: 4}}
"""


async def test_a_node_becomes_what_the_file_says_and_its_export_says_the_same(
    tmp_path: Path,
) -> None:
    async with console(tmp_path) as shell:
        shell.file.write_text(DESIRED)
        differs, steps = await shell.run("diff")
        before = (await shell.agent.node()).gpus[0].slices
        dry, dry_steps = await shell.run("apply", "--dry-run")
        applied, said = await shell.run("apply")
        node = await shell.agent.node()
        same, nothing = await shell.run("diff")
        exported = await cinquefoil("gpuagent", "export", "-c", shell.config)
        shell.file.write_text(exported.out)
        again, _ = await shell.run("diff")

    assert (differs, dry, applied, same, again) == (3, 0, 0, 0, 0)
    assert [line.split()[:3] for line in steps.splitlines()[1:]] == [
        ["1.", "create", "3g.20gb@0"],
        ["create", "2g.10gb@4", GPU],
        ["2.", "start", "s-0"],
        ["3.", "clock", "990"],
    ]
    assert dry_steps == steps
    assert not before
    assert "Done in" in said
    assert "nothing to do" in nothing
    assert [segment.spec.segment_id for segment in node.segments] == ["s-0"]
    assert yaml.safe_load(exported.out)["gpus"][0]["slices"] == ["3g.20gb@0", "2g.10gb@4"]


@pytest.mark.parametrize(
    ("text", "status", "says"),
    [
        (
            "version: v1\ngpus:\n  - {uuid: GPU-1, colour: red}\n",
            2,
            "line 3: gpus.0.colour: unknown key",
        ),
        ("version: v1\ngpus:\n  - {uuid: GPU-1, slices: [3g]}\n", 2, "line 3"),
        ("version: v1\ngpus:\n  - {uuid: GPU-none}\n", 1, "no GPU 'GPU-none'"),
    ],
)
async def test_an_impossible_file_is_reported_with_its_line_or_its_reason(
    tmp_path: Path, text: str, status: int, says: str
) -> None:
    async with console(tmp_path) as shell:
        shell.file.write_text(text)
        ended, said = await shell.run("apply")

    assert ended == status
    assert says in " ".join(said.split())


async def test_show_has_slices_segments_clocks_and_power(tmp_path: Path) -> None:
    """One table of what Cinquefoil knows of a node's GPUs, and all of it as JSON."""
    async with console(tmp_path) as shell:
        shell.file.write_text(DESIRED)
        await shell.run("apply")
        shown = await cinquefoil("gpuagent", "show", "-c", shell.config)
        document = await cinquefoil("gpuagent", "show", "--json", "-c", shell.config)

    rows = [line.split() for line in shown.out.splitlines()]
    assert [f"{NODE}/0", "a100-40gb", "990/1410", "held", "on"] in [
        [*row[:2], *row[6:]] for row in rows
    ]
    assert [f"{NODE}/0", "3g.20gb@0", "m/v", "4x1"] in [row[:4] for row in rows]
    assert [f"{NODE}/0", "2g.10gb@4", "free"] in rows
    found = json.loads(document.out)
    assert found["node"]["segments"][0]["spec"]["segment_id"] == "s-0"
    assert found["energy"][0]["gpu_uuid"] == GPU
    assert found["energy"][0]["power_w"] > 0


async def test_show_says_what_keeps_the_node_from_working(tmp_path: Path) -> None:
    """A model's file that is not there is a condition of the node, under the table."""
    async with console(tmp_path, with_model=False) as shell:
        shown = await cinquefoil("gpuagent", "show", "-c", shell.config)

    assert "none.onnx" in shown.out
