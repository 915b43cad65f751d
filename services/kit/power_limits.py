"""Bounds of power: a meter, a node or a worker that states more is not believed."""

from typing import Final

MOST_GPU_W: Final = 1e4
"""Power limit that no GPU exceeds, W."""

PROCESSORS_W: Final = 2000.0
"""Most power of a machine's processors, W: the meter of CPU cores may count all of them."""

MOST_OVER_LIMIT: Final = 1.5
"""Power over the limit up to which a meter is believed: boards exceed theirs for moments."""
