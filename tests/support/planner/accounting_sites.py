"""Three nodes in two zones, and what BASE would have served where."""

from datetime import UTC, datetime

from services.planner.core.accounting.baseline import BaselineRate
from services.planner.core.accounting.site import EmbodiedCarbon, Site

START_S = datetime(2026, 3, 1, 11, 30, tzinfo=UTC).timestamp()
SITES = {
    "a": Site("a", "Z", 1.5, 200.0, {"GPU-a": EmbodiedCarbon(0.001, {"m": 0.5, "n": 0.25})}),
    "b": Site("b", "Z", 1.0, 200.0),
    "c": Site("c", "Y", 1.2, 50.0),
}
RATES = {"m": (BaselineRate("a", 6.0, 0.75, 0.1), BaselineRate("c", 2.0, 0.25, 0.1))}
