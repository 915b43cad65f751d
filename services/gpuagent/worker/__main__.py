"""`python -m services.gpuagent.worker SPEC`: one process of one segment; the agent starts it."""

from __future__ import annotations

import sys
from pathlib import Path

from services.gpuagent.worker.process import launch

if __name__ == "__main__":
    sys.exit(launch(Path(sys.argv[1])))
