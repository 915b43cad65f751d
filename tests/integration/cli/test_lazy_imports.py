"""Libraries that the services do not import when they start."""

import os
import subprocess
import sys
from pathlib import Path


def test_services_start_without_the_libraries_of_single_decisions() -> None:
    """A tenth of a second to a whole one each, for what a service needs later or never.

    Only an agent's workers compute: on a CPU node it imports ONNX Runtime when it measures a core.
    """
    names = ("planner", "gpuagent.worker", "router")
    apps = ", ".join(f"services.{name}.app" for name in names)
    # The carbon service comes last: httpx imports rich for a command line of its own.
    code = (
        "import sys, services.gpuagent.app; assert 'onnxruntime' not in sys.modules;"
        f"import {apps}; assert 'rich' not in sys.modules;"
        "import services.carbon.app; print(*sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"networkx", "matplotlib", "sklearn"} & set(ended.stdout.split())


def test_no_library_sends_telemetry(tmp_path: Path) -> None:
    """ONNX Runtime's telemetry begins at its import, with a database below the cache folder."""
    code = "import services.gpuagent.worker.onnx_engine, services.predictor.embedding.minilm"
    ours = {key: each for key, each in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"}
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=ours | home)
    assert not list(tmp_path.rglob("*"))
