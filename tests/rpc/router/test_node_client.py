"""A Node client, @grpc/grpc-js, against a real router.

Only with CINQUEFOIL_TEST_NODE=1: npm installs the client, which takes a network.
"""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT, SUPPORT
from tests.support.router.router_service import running

NODE, NPM = shutil.which("node"), shutil.which("npm")
PACKAGES = ("@grpc/grpc-js@1.14.7", "@grpc/proto-loader@0.8.1")
PROGRAM = SUPPORT / "router/node_client.cjs"
PROTOS = ROOT / "protos"

pytestmark = [
    pytest.mark.skipif(NODE is None or NPM is None, reason="needs node and npm"),
    pytest.mark.skipif(
        os.environ.get("CINQUEFOIL_TEST_NODE") != "1",
        reason="installs from npm: set CINQUEFOIL_TEST_NODE=1",
    ),
]


async def output(*command: str, **environment: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    said, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return said.decode()


async def test_node_infers_streams_and_gets_clear_errors(tmp_path: Path) -> None:
    assert NODE is not None
    assert NPM is not None
    await output(NPM, "install", "--silent", "--no-fund", "--no-audit", "--prefix", str(tmp_path),
                 *PACKAGES)  # fmt: skip
    async with running(max_queue=8) as world:
        await world.route(await world.worker("a"))
        modules = str(tmp_path / "node_modules")
        said = await output(NODE, str(PROGRAM), world.address, str(PROTOS), NODE_PATH=modules)
    seen: dict[str, Any] = json.loads(said)

    wrong = "no model 'nothing'; models are digits"
    assert (seen["id"], seen["output"], seen["zipped"], seen["energy_j"]) == ("mine", 10, 10, 3.6)
    assert seen["unknown"] == {"code": 5, "details": wrong}
    assert seen["late"]["code"] == 4
    assert seen["index"] == [["digits", "READY"]]
    assert seen["stream"] == [["a", 10, True], ["b", wrong, True], ["c", 10, True]]
