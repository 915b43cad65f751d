"""How the carbon service starts: `python -m services.carbon`."""

from __future__ import annotations

import sys

from services.carbon.app import run
from services.kit.process.service import launch

if __name__ == "__main__":
    sys.exit(launch("carbon", run))
