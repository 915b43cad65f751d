"""How the planner starts: `python -m services.planner`."""

from __future__ import annotations

import sys

from services.kit.process.service import launch
from services.planner.app import run

if __name__ == "__main__":
    sys.exit(launch("planner", run))
