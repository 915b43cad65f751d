"""What the services do not import when they start."""

import subprocess
import sys


def test_services_start_without_the_libraries_of_single_decisions() -> None:
    """A third of a second each, for what a service needs later or never."""
    apps = [f"services.{name}.app" for name in ("carbon", "planner", "gpuagent", "router")]
    code = f"import sys, {', '.join(apps)}; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"networkx", "matplotlib"} & set(ended.stdout.split())
