"""Where things lie."""

from pathlib import Path

from benchmarks._data import DATA

TESTS = Path(__file__).parents[1]
SUPPORT = TESTS / "support"
ROOT = TESTS.parent
MADE_UP = TESTS / "data"
"""Small files of our own numbers in the formats of published data; see `make.py` there."""
PUBLISHED = DATA
"""Published measurements and traces, where `cinquefoil data fetch` or somebody has put them."""
