"""A message's fields are written down once: in its .proto, of which records are generated."""

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

from google.protobuf.descriptor import FileDescriptor

ROOT = Path(__file__).parents[3]
ALIKE = 0.6
MIN_FIELDS = 3

OTHER_THINGS = {
    # Changed while they live.
    "services/gpuagent/energy/core/account.py:Account",
    "services/planner/core/history/recorder.py:_Answers",
    "services/predictor/core/prediction_stats.py:SourceStats",
    "services/router/core/accounting/receipt_watchers.py:Watcher",
    # Sections of the deployment file, which are checked by field.
    "services/cli/desired.py:DesiredGpu",
    "services/cli/desired.py:DesiredSegment",
    "services/kit/config/planning.py:Goals",
    # Of what the driver or the wire says, what decisions need; equal if it makes no difference.
    "services/kit/hardware/gpu_types.py:GpuModel",
    "services/gpuagent/core/model.py:Segment",
    "services/gpuagent/core/model.py:Node",
    "services/planner/core/fleet.py:Node",
    "services/planner/core/model.py:GpuType",
    "services/planner/core/regions/exchange.py:HomeWish",  # with the sender's home
    "services/planner/core/regions/offers.py:Offer",  # in one region, at home, too
    "services/planner/core/waiting/model.py:Away",  # before anything is released; weighted
    "services/gpuagent/profile_drift/core/drift.py:SegmentKind",
    "services/router/core/model.py:Instance",
    "services/router/core/model.py:ModelRoutes",
    "services/router/core/model.py:RoutingTable",
    "services/router/core/worker_port.py:Hello",
    "services/router/core/worker_port.py:Result",
    # Without a record, as what calls take and return has none; or values of another one's parts.
    "services/planner/core/accounting/entries.py:Figures",  # adds up; its key stands apart
    "services/planner/core/accounting/accountant.py:Metered",  # of some GPUs, before it is booked
    "services/planner/core/power/budgets.py:PowerBudget",  # in time; a site's power names it
    "services/planner/core/routing_table.py:ServingPolicy",
}
"""Classes that share their fields' names with a message, and are no restatement of it."""


@cache
def messages() -> tuple[frozenset[str], ...]:
    """Return the names of the fields of each message that has some."""
    paths = (ROOT / "protos/cinquefoil").rglob("*_pb2.py")
    names = (".".join(each.relative_to(ROOT / "protos").with_suffix("").parts) for each in paths)
    files: list[FileDescriptor] = [import_module(name).DESCRIPTOR for name in names]
    found = (each for file in files for each in file.message_types_by_name.values())
    fields = (frozenset(field.name for field in each.fields) for each in found)
    return tuple(each for each in fields if len(each) >= MIN_FIELDS)


def own_fields(node: ast.ClassDef) -> frozenset[str]:
    """Return the annotated fields of a class."""
    parts = (each.target for each in node.body if isinstance(each, ast.AnnAssign))
    return frozenset(each.id for each in parts if isinstance(each, ast.Name))


def mirrors(source: str) -> Iterator[str]:
    """Yield the classes of a module most of whose fields are most of a message's."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            own = own_fields(node)
            shared = max(
                (
                    len(own & each) / max(len(own), len(each), 1)
                    for each in messages()
                    if len(own & each) >= MIN_FIELDS
                ),
                default=0.0,
            )
            if shared >= ALIKE:
                yield node.name


def test_no_class_restates_a_message() -> None:
    """A field that is added to a message has no second place to be added to."""
    found = {
        f"{path.relative_to(ROOT)}:{name}"
        for path in sorted((ROOT / "services").rglob("*.py"))
        for name in mirrors(path.read_text(encoding="utf-8"))
    }
    assert found == OTHER_THINGS


def test_a_class_with_most_fields_of_a_message_is_found() -> None:
    """The check bites: renamed, shortened, and with a field of its own."""
    copy = "class Part:" + "".join(f"\n    {name}: str" for name in ("spec", "node", "share", "x"))
    other = "class Part:" + "".join(f"\n    {name}: str" for name in ("node", "share", "x", "y"))
    assert list(mirrors(copy)) == ["Part"]
    assert list(mirrors(other)) == []
