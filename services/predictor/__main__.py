"""How the predictor service starts: `python -m services.predictor`."""

from __future__ import annotations

import sys

from services.kit.process.service import launch
from services.predictor.app import run

if __name__ == "__main__":
    sys.exit(launch("predictor", run))
