"""A real deployment for the tests of this folder: small, quick to change its plans.

The tests of a module share one suite, and so its event loop: `SHARED` marks them.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import pytest_asyncio
import yaml

from benchmarks._secured import secure
from cinquefoil.planner.v1 import planner_pb2, planner_pb2_grpc
from services.kit.config.loader import load
from services.kit.net import free_port
from services.kit.rpc import dial
from services.local.demo.digits import held_out
from services.local.up.health import until_answering
from services.local.up.suite import Suite
from tests.support.paths import ROOT, SUPPORT

if TYPE_CHECKING:
    from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceAsyncStub

CLIENT = SUPPORT / "triton_load.py"
SHARED = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the module's suite keeps everything."""
    return tmp_path_factory.mktemp("suite")


@pytest.fixture(scope="module")
def secured() -> bool:
    """Mutual TLS between services and clients: off; a module may have a fixture of its own."""
    return False


@pytest.fixture(scope="module")
def config(folder: Path, digits_models: Path, secured: bool) -> Path:
    """The example deployment on free ports, with a grid that changes every second."""
    data = yaml.safe_load((ROOT / "cinquefoil.yaml").read_text())
    data["carbon"] |= {
        "listen": f"127.0.0.1:{free_port()}",
        "replay": {"speedup": 3600, "start": "2026-06-01T04:00:00Z"},  # noon is 8 s away
    }
    data["planner"] |= {
        "listen": f"127.0.0.1:{free_port()}",
        "database": str(folder / "planner.sqlite3"),
        "triggers": {"min_interval_s": 2.0, "settle_s": 0.2},
        "objective": {
            "carbon_weight": 0.05,
            "accuracy_floor": 0.95,
        },  # each swing of the grid counts
    }
    data["router"] = {"listen": f"127.0.0.1:{free_port()}"}
    for section in (data["carbon"], data["planner"], data["router"], *data["nodes"].values()):
        section["metrics"] = f"127.0.0.1:{free_port()}"
    for node in data["nodes"].values():
        node |= {
            "listen": f"127.0.0.1:{free_port()}",
            "state_dir": str(folder / "state"),
            "orphan_timeout_s": 30.0,
        }
    for variant in data["models"]["digits"]["variants"].values():
        variant["file"] = str(digits_models / Path(variant["file"]).name)
    data["models"]["digits"]["demand_rps"] = 40
    path = folder / "cinquefoil.yaml"
    path.write_text(yaml.safe_dump(data))
    if secured:
        secure(path, folder / "pki")
    return path


@dataclass(frozen=True)
class Running:
    """A suite that answers, and how to reach it."""

    suite: Suite
    router: str
    planner: PlannerServiceAsyncStub
    load: Callable[..., Coroutine[Any, Any, dict[str, Any]]]

    async def newest_version(self) -> int:
        """Return the newest plan's version."""
        answer = await self.planner.GetPlan(planner_pb2.GetPlanRequest(), timeout=5)
        return int(answer.plan.version)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(config: Path, folder: Path) -> AsyncIterator[Running]:
    """The whole suite as processes, ready to answer."""
    deployment = load(config)
    images = folder / "images.npy"
    np.save(images, held_out()[0])

    operator = deployment.identity("operator")
    pki = () if operator is None else (f"--pki={folder / 'pki/client/local'}",)

    async def send(seconds: float, rate: float, *flags: str) -> dict[str, Any]:
        client = await asyncio.create_subprocess_exec(
            sys.executable,
            str(CLIENT),
            deployment.router.dial,
            str(images),
            str(seconds),
            str(rate),
            *pki,
            *flags,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, complaints = await client.communicate()
        assert client.returncode == 0, complaints.decode()
        report: dict[str, Any] = json.loads(output)
        return report

    async with (
        Suite.of(config, folder / "logs") as suite,
        dial(deployment.planner.dial, operator) as channel,
    ):
        await asyncio.wait_for(until_answering(deployment.router.dial, operator), 90)
        stub = planner_pb2_grpc.PlannerServiceStub(channel)
        yield Running(suite, deployment.router.dial, stub, send)
