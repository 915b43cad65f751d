"""A network in two stages on two nodes, under load from an unmodified Triton client."""

import asyncio
import json
from pathlib import Path

import numpy as np
import onnx
import onnx.utils
import onnxruntime
import psutil
import pytest
import yaml

from cinquefoil.planner.v1 import planner_pb2
from services.kit.net import free_port
from tests.support.gpuagent.agent_service import workers_in
from tests.support.running_suite import SHARED, Running

pytestmark = [SHARED, pytest.mark.system, pytest.mark.timeout(90)]

NODES = ("node-0", "node-1")
WIDTH = 256


@pytest.fixture(scope="module")
def digits_models(folder: Path) -> Path:
    """No models of the demo: they take long to train, and this network needs no training."""
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """A network of two layers, with the client's names of inputs and outputs."""
    rng = np.random.default_rng(1)
    layers = {"w1": rng.standard_normal((64, WIDTH)), "w2": rng.standard_normal((WIDTH, 10))}
    tensor, single = onnx.helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("MatMul", ["image", "w1"], ["sums"]),
            onnx.helper.make_node("Relu", ["sums"], ["hidden"]),
            onnx.helper.make_node("MatMul", ["hidden", "w2"], ["scores"]),
            onnx.helper.make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0),
        ],
        "two-layers",
        [tensor("image", single, [None, 64])],
        [tensor("label", onnx.TensorProto.INT64, [None]), tensor("scores", single, [None, 10])],
        [onnx.numpy_helper.from_array(w.astype(np.float32), name) for name, w in layers.items()],
        value_info=[tensor("hidden", single, [None, WIDTH])],
    )
    opset = onnx.helper.make_opsetid("", 21)
    file = folder / "whole.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10), file)
    return file


def stages_of(file: Path) -> list[str]:
    """Cut the network between its layers."""
    cut = onnx.utils.Extractor(onnx.load(file)).extract_model
    files = [str(file.with_name(f"stage-{number}.onnx")) for number in range(2)]
    onnx.save(cut(["image"], ["hidden"]), files[0])
    onnx.save(cut(["hidden"], ["label", "scores"]), files[1])
    return files


@pytest.fixture(scope="module")
def config(config: Path, whole: Path) -> Path:
    """Two nodes of one GPU each, none of which takes both stages; a grid that never changes."""
    data = yaml.safe_load(config.read_text())
    node = data["nodes"]["node-0"] | {"simulated": ["t4"]}
    data["nodes"] = {
        name: node | {key: f"127.0.0.1:{free_port()}" for key in ("listen", "metrics")}
        for name in NODES
    }
    data["carbon"]["zones"]["US-CAL"]["source"] = {
        "kind": "static",
        "intensity_gco2e_per_kwh": 200,
    }
    data["models"]["digits"] |= {
        "demand_rps": 20,
        "variants": {
            "deep": {
                "stages": stages_of(whole),
                "accuracy": 0.9805,
                "profile": {"kind": "analytic", "gmacs_per_item": 5},
            }
        },
    }
    config.write_text(yaml.safe_dump(data))
    return config


async def test_a_pipeline_over_two_agents_loses_nothing_when_a_stages_worker_is_killed(
    running: Running, folder: Path, whole: Path
) -> None:
    """Stages on two nodes; the answers are the whole network's; the receipts have both stages."""
    plan = (await running.planner.GetPlan(planner_pb2.GetPlanRequest(), timeout=5)).plan
    assert {segment.node for segment in plan.segments} == set(NODES)
    assert {segment.spec.stage for segment in plan.segments} == {0, 1}

    load = asyncio.create_task(running.load(6, 30, "--labels"))
    await asyncio.sleep(1.5)
    for stage in (1, 0):
        worker_of(folder, stage).kill()
        await asyncio.sleep(1.5)
    report = await load

    nodes = (await running.planner.GetFleet(planner_pb2.GetFleetRequest(), timeout=5)).nodes
    assert all(each.restarts for node in nodes for each in node.node.segments)
    assert not report["errors"], report["errors"][:3]
    assert report["answered"] == report["sent"] > 100
    assert report["variants"] == {"deep": report["sent"]}
    session = onnxruntime.InferenceSession(whole)
    (expected,) = session.run(["label"], {"image": np.load(folder / "images.npy")})
    assert {label for picture, label in report["labels"] if expected[picture] != label} == set()
    assert len(report["labels"]) == report["sent"]


def worker_of(folder: Path, stage: int) -> psutil.Process:
    """Return the worker of a stage: the first one's passes its answers on."""
    passes_on = stage == 0
    for worker in workers_in(folder):
        (spec,) = (Path(word) for word in worker.cmdline() if word.endswith(".json"))
        if json.loads(spec.read_text())["passes_on"] == passes_on:
            return worker
    raise LookupError(stage)
