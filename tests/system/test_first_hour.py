"""From an ONNX file and a validation set to an answered request, by a newcomer's commands."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

from services.kit.net import free_port
from services.local.demo.digits import held_out
from services.local.up.suite import Suite
from tests.support.paths import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]


async def cinquefoil(*words: object) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", *map(str, words)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
    )
    output, _ = await process.communicate()
    return output.decode() if process.returncode == 0 else f"failed: {output.decode()}"


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """The validation set; outside of the loop, as scikit-learn takes a second to import."""
    images, labels = held_out()
    np.savez(tmp_path / "val.npz", images=images, labels=labels)
    return tmp_path / "val.npz"


async def test_a_network_and_its_validation_set_are_all_it_takes(
    tmp_path: Path, convnets: Path, samples: Path
) -> None:
    """The output of `init` serves as it is; only ports are changed, for tests beside this one."""
    network = convnets / "conv-16.onnx"

    said = await cinquefoil("init", tmp_path, "--onnx", network, "--data", samples, "--no-control")
    assert "right of 719 items" in said
    config, yaml = tmp_path / "cinquefoil.yaml", YAML()
    document = yaml.load(config)
    node = document["nodes"]["node-0"]
    document |= {"router": {}}
    for section in (document["carbon"], document["planner"], document["router"], node):
        section["listen"] = f"127.0.0.1:{free_port()}"
    document["planner"]["database"] = str(tmp_path / "planner.sqlite3")
    node["state_dir"] = str(tmp_path / "state")
    yaml.dump(document, config)

    async with Suite.of(config, tmp_path / "logs"):
        async with asyncio.timeout(60):
            words = ("conv-16", "--input", samples, "--item", 3, "--json")
            while (said := await cinquefoil("infer", *words, "-c", config)).startswith("failed"):
                assert "UNAVAILABLE" in said  # the first plan is being carried out
        at_20_rps = ("--rps", 20, "--seconds", 3, "--json", "-c", config)
        load = await cinquefoil("load", "conv-16", "--input", samples, *at_20_rps)
        assert "{" in load, load
        books = json.loads(load[load.index("{") :])

    assert books["sent"] == books["answered"] > 0
    assert books["accuracy"] > 0.9
    assert books["variants"] == {"conv-16": books["answered"]}
    assert books["energy_j"] > 0

    answer = json.loads(said)
    assert answer["truth"] == np.load(samples)["labels"][3]
    receipt = answer["parameters"]
    assert receipt["model_variant"] == "conv-16"
    assert receipt["energy_j"] > 0
    assert receipt["carbon_gco2e"] > 0
