"""`python -m services.router`."""

from __future__ import annotations

import sys

from services.kit.process.service import launch
from services.router.app import run

if __name__ == "__main__":
    sys.exit(launch("router", run))
