"""GPUs of three kinds, two models, and configurations that fit."""

from collections import Counter
from collections.abc import Iterator

from hypothesis import strategies as st

from services.kit.mig import maximal_layouts
from services.planner.core.model import Configuration, Pool, SegmentKind
from tests.support.planner import fleets

POOLS = (fleets.pool(), fleets.pool("a30", zone="GB"), fleets.pool("t4", zone="GB"))
MODELS = [fleets.model("one"), fleets.model("two", gmacs=(0.5, 4.0), accuracies=(70.0, 80.0))]
FLEET = fleets.fleet((POOLS[0], 3), (POOLS[1], 2), (POOLS[2], 1))
PROBLEM = fleets.problem(
    FLEET, MODELS, batch_sizes=(1, 8), max_processes=1, clock_ratios=(1.0, 0.6)
)


def ids(prefix: str = "s") -> Iterator[str]:
    return (f"{prefix}{number}" for number in range(10_000))


def kinds_for(pool: Pool, profile: str, clock_mhz: int = 0) -> list[SegmentKind]:
    place_of = (pool, profile, clock_mhz)
    return [k for k in PROBLEM.catalog if (k.pool, k.profile, k.clock_mhz) == place_of]


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    """A layout and a clock per GPU, some of its slots used: it fits by construction."""
    segments: Counter[SegmentKind] = Counter()
    for gpu in FLEET:
        layout = draw(st.sampled_from(maximal_layouts(gpu.pool.type.geometry)))
        clock_mhz = draw(st.sampled_from([0, round(0.6 * gpu.pool.type.max_clock_mhz)]))
        for placement in layout:
            offers = (None, *kinds_for(gpu.pool, placement.profile, clock_mhz))
            kind = draw(st.sampled_from(offers))
            if kind is not None:
                segments[kind] += 1
    load_rps = {kind: draw(st.floats(0.0, 50.0)) for kind in segments}
    return Configuration(segments, load_rps)
