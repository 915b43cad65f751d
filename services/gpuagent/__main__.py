"""How the agent starts: `python -m services.gpuagent [NODE]`."""

from __future__ import annotations

import sys
from functools import partial

from services.gpuagent.app import run
from services.kit.process.service import launch

if __name__ == "__main__":
    sys.exit(launch("gpuagent", partial(run, node="".join(sys.argv[1:2]))))
