"""Actions on GPUs and segments, and the stages of a rollout."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cinquefoil.gpuagent.v1.records import CreateSlice, DestroySlice, LockClock
from services.planner.core.model import Segment


@dataclass(frozen=True, slots=True)
class StartSegment:
    """Start a segment's workers on an existing slice and wait until they answer."""

    segment: Segment


@dataclass(frozen=True, slots=True)
class StopSegment:
    """Drain a segment's workers, then stop them."""

    segment_id: str
    gpu_uuid: str


Action = CreateSlice | DestroySlice | LockClock | StartSegment | StopSegment


@dataclass(frozen=True, slots=True)
class Stage:
    """Part of a rollout: first the routes change, then the actions run.

    Attributes:
        serving: Ids of the segments that take load from before the first action until the next
            stage; without those that `actions` stop.
        actions: Lists of actions by order: the actions of one list may run at the same time, and
            the next list starts when all have succeeded.
    """

    serving: frozenset[str]
    actions: tuple[tuple[Action, ...], ...]


@dataclass(frozen=True, slots=True)
class Rollout:
    """The ordered actions from what runs to a plan.

    Attributes:
        stages: Stages in order. After the last, the plan's segments serve.
        least_capacity: Least capacity of each model in any stage, over its demand; below 1 the
            rollout falls behind the demand for a while.
        bridges: Segments that serve during the rollout alone.
    """

    stages: tuple[Stage, ...]
    least_capacity: Mapping[str, float] = field(default_factory=dict)
    bridges: tuple[Segment, ...] = ()

    @property
    def actions(self) -> int:
        """Number of actions."""
        return sum(len(step) for stage in self.stages for step in stage.actions)

    @property
    def slice_changes(self) -> int:
        """Number of slices created or destroyed."""
        return self.count(CreateSlice, DestroySlice)

    def count(self, *kinds: type[Action]) -> int:
        """Return the number of actions of some kinds."""
        return sum(
            isinstance(action, kinds)
            for stage in self.stages
            for step in stage.actions
            for action in step
        )
