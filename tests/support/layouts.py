"""All layouts of a GPU: what is tested with every one."""

from collections.abc import Iterator

from cinquefoil.gpuagent.v1.records import Placement
from services.kit.mig import Geometry, Layout


def layouts(geometry: Geometry) -> Iterator[Layout]:
    """Yield every valid layout, the empty one included, each once."""

    def extend(layout: Layout, first_free: int) -> Iterator[Layout]:
        yield layout
        for kind in geometry.kinds:
            for start in kind.starts:
                grown = (*layout, Placement(kind.name, start))
                if start >= first_free and not geometry.problem(grown):
                    yield from extend(grown, start + kind.memory_slices)

    yield from extend((), 0)
