"""What explanations and differences are made of; fields mirror `explanation.proto`."""

from dataclasses import dataclass

from services.kit.conditions import Condition
from services.planner.core.plan import PlannedSegment, Prediction


@dataclass(frozen=True, slots=True)
class Binding:
    """A constraint that leaves no room.

    Attributes:
        constraint: Which.
        subject: What it binds; "": the whole plan.
        used: How much of it is used, 0..1.
        sentence: For people.
    """

    constraint: str
    subject: str
    used: float
    sentence: str


@dataclass(frozen=True, slots=True)
class Alternative:
    """Something else that could have been decided.

    Attributes:
        description: What it is.
        outlook: The prediction of it.
        loses: How much worse its objective is than the plan's, percentage points.
    """

    description: str
    outlook: Prediction
    loses: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a plan is as it is.

    Attributes:
        version: Of the plan; 0: a dry run.
        bindings: What keeps it from being better, the most binding first.
        plan: The prediction of the plan.
        runner_up: The best configuration found that differs from it, if any.
        base: Each model's best variant on whole GPUs, where the fleet holds it.
        gap: Proven relative optimality gap, or None.
        sentences: All of it, for people.
        conditions: What the plan cannot keep, and which setting changes it.
    """

    version: int
    bindings: tuple[Binding, ...]
    plan: Prediction
    runner_up: Alternative | None
    base: Alternative | None
    gap: float | None
    sentences: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class ShareChange:
    """A segment whose share of its model's load changes, 0..1."""

    segment_id: str
    from_share: float
    to_share: float


@dataclass(frozen=True, slots=True)
class ClockChange:
    """A GPU whose SM clock changes, MHz; 0: the driver's own."""

    gpu_uuid: str
    from_mhz: int
    to_mhz: int


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """How two plans differ.

    Attributes:
        from_version, to_version: The plans; 0: a dry run.
        started: Segments that only the later one has.
        stopped: Segments that only the earlier one has.
        shares: Segments of both whose share changes.
        clocks: GPUs whose clock changes.
        from_outlook, to_outlook: The predictions of both.
        kept: Segments of both.
    """

    from_version: int
    to_version: int
    started: tuple[PlannedSegment, ...]
    stopped: tuple[PlannedSegment, ...]
    shares: tuple[ShareChange, ...]
    clocks: tuple[ClockChange, ...]
    from_outlook: Prediction
    to_outlook: Prediction
    kept: int


def percent(share: float, digits: int = 1) -> str:
    """Return a share of one in percent, as sentences say it."""
    return f"{share:.{digits}%}".replace("%", " %")
