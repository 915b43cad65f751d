"""Where things lie."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
SUPPORT = TESTS / "support"
ROOT = TESTS.parent
MADE_UP = TESTS / "data"
"""Small files of our own numbers in the formats of published data; see `make.py` there."""
PUBLISHED = ROOT / "../shared/data"
"""Published measurements and traces, where somebody has put them beside the repository."""
