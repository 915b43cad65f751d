"""A GPU that two segments fill, for tests of changes."""

from pathlib import Path

from cinquefoil.gpuagent.v1 import inventory_pb2
from tests.support.gpuagent.agent_service import (
    Planner,
    create,
    placement,
    segment_spec,
    start,
    workers_in,
)

READY = inventory_pb2.SEGMENT_STATE_READY
ON_0 = segment_spec("s-0")
ON_4 = segment_spec("s-4", placement=placement("3g.20gb", 4))
SMALL = segment_spec("s-small", placement=placement("2g.10gb", 4))


async def fill(planner: Planner) -> None:
    result = await planner.change(
        [create("3g.20gb", 0), create("3g.20gb", 4)], [start(ON_0), start(ON_4)]
    )
    assert result.ok, result.message


def pids(folder: Path) -> dict[str, int]:
    """Return the worker's process by segment."""
    return {Path(p.info["cmdline"][-1]).name.split(".")[0]: p.pid for p in workers_in(folder)}


def ready(planner: Planner) -> dict[str, list[str]]:
    """Return the endpoints of the segments that are ready."""
    return {s.spec.segment_id: list(s.endpoints) for s in planner.node.segments if s.state == READY}
