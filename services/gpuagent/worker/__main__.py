"""`python -m services.gpuagent.worker SPEC`: one process of one segment; the agent starts it."""

import gc
import sys
from pathlib import Path

if __name__ == "__main__":
    gc.disable()  # imports leave nothing to collect; to look for it is a tenth of the start
    from services.gpuagent.worker.app import launch

    sys.exit(launch(Path(sys.argv[1])))
