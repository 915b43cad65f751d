"""Programs that a service starts, beside gRPC's threads."""

import os
import subprocess
import sys

import pytest

_STARTS_PROGRAMS = """
import asyncio, {imported}, grpc, uvloop

async def main():
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    for _ in range(3):
        await (await asyncio.create_subprocess_exec("true")).wait()
    await server.stop(0)

uvloop.run(main())
"""


@pytest.mark.parametrize("imported", ["services", "benchmarks"])
def test_grpc_does_nothing_when_a_program_is_started(imported: str) -> None:
    """Starting one forks; gRPC's handlers of that say so, or stop the threads of channels."""
    ours = {key: each for key, each in os.environ.items() if key != "GRPC_ENABLE_FORK_SUPPORT"}
    ended = subprocess.run(
        [sys.executable, "-c", _STARTS_PROGRAMS.format(imported=imported)],
        capture_output=True,
        text=True,
        check=True,
        env=ours,
    )
    assert not ended.stderr
