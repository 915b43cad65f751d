"""Conditions: what keeps a node, a model, a plan or a zone from working, and what changes it.

Services compute them, status and `cinquefoil up` show them, errors of requests quote them, and
docs/conditions.md lists them.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from cinquefoil.condition.v1.records import Condition, ConditionKind


class Effect(StrEnum):
    """Effect of a condition on its subject.

    STOPS: it does not work until an operator intervenes. WAITS: it does not work yet, and that
    may pass by itself. DEGRADES: it works, but not as well as it should.
    """

    STOPS = "stops"
    WAITS = "waits"
    DEGRADES = "degrades"


EFFECTS: Final[Mapping[ConditionKind, Effect]] = {
    ConditionKind.CONTROL_OFF: Effect.STOPS,
    ConditionKind.NODE_AWAY: Effect.WAITS,
    ConditionKind.GPU_MISSING: Effect.STOPS,
    ConditionKind.PROVIDER_MISSING: Effect.STOPS,
    ConditionKind.MODEL_FILE_MISSING: Effect.STOPS,
    ConditionKind.FIXED_BATCH: Effect.DEGRADES,
    ConditionKind.WORKER_FAILING: Effect.WAITS,
    ConditionKind.QUARANTINED: Effect.DEGRADES,
    ConditionKind.DISK_FULL: Effect.DEGRADES,
    ConditionKind.ZONE_UNKNOWN: Effect.WAITS,
    ConditionKind.INTENSITY_STALE: Effect.DEGRADES,
    ConditionKind.NO_VARIANT_MEETS_SLO: Effect.STOPS,
    ConditionKind.PROFILE_MISSING: Effect.STOPS,
    ConditionKind.CAPACITY_MISSING: Effect.DEGRADES,
    ConditionKind.ACCURACY_FLOOR_MISSED: Effect.DEGRADES,
    ConditionKind.STRATEGY_WITHOUT_PIPELINES: Effect.STOPS,
    ConditionKind.ROLLOUT_FAILED: Effect.WAITS,
    ConditionKind.UNDECIDED: Effect.WAITS,
    ConditionKind.REDUNDANCY_MISSING: Effect.DEGRADES,
    ConditionKind.STATE_DAMAGED: Effect.DEGRADES,
    ConditionKind.MODEL_FILE_DAMAGED: Effect.STOPS,
    ConditionKind.TEXTS_TOO_LONG: Effect.DEGRADES,
    ConditionKind.GPU_ESTIMATED: Effect.DEGRADES,
    ConditionKind.GPU_IMPAIRED: Effect.DEGRADES,
    ConditionKind.PLAN_HELD: Effect.DEGRADES,
    ConditionKind.FROZEN: Effect.DEGRADES,
    ConditionKind.MAINTENANCE: Effect.DEGRADES,
    ConditionKind.PARKED: Effect.WAITS,
    ConditionKind.POWER_LIMITED: Effect.DEGRADES,
    ConditionKind.POWER_BELOW_IDLE: Effect.DEGRADES,
    ConditionKind.POWER_CAPPED: Effect.DEGRADES,
    ConditionKind.GRID_SERVER_AWAY: Effect.DEGRADES,
    ConditionKind.GRID_EVENT_REFUSED: Effect.DEGRADES,
    ConditionKind.PRICE_UNKNOWN: Effect.DEGRADES,
    ConditionKind.CARBON_BUDGET_SHORT: Effect.DEGRADES,
}
"""By kind; a kind that only a newer service knows has none."""

HOLDS: Final = (ConditionKind.PLAN_HELD, ConditionKind.FROZEN, ConditionKind.MAINTENANCE)
"""Kinds that keep the planner from making other plans: a model that the plan lacks is stopped."""

_COMMANDS: Final[Mapping[ConditionKind, str]] = {
    ConditionKind.CONTROL_OFF: "gpuagent serve --node {0}",
    ConditionKind.NODE_AWAY: "gpuagent serve --node {0}",
    ConditionKind.GPU_MISSING: "doctor",
    ConditionKind.PROVIDER_MISSING: "doctor",
    ConditionKind.MODEL_FILE_MISSING: "models fetch {0}",
    ConditionKind.FIXED_BATCH: "models show {0}",
    ConditionKind.WORKER_FAILING: "models show {0}",
    ConditionKind.QUARANTINED: "models show {0}",
    ConditionKind.DISK_FULL: "doctor",
    ConditionKind.ZONE_UNKNOWN: "doctor",
    ConditionKind.INTENSITY_STALE: "doctor",
    ConditionKind.NO_VARIANT_MEETS_SLO: "config set models.{0}.slo.latency_s=SECONDS",
    ConditionKind.PROFILE_MISSING: "gpuagent profile {0}",
    ConditionKind.CAPACITY_MISSING: "plan dry-run --add-gpus TYPE:NODE:COUNT",
    ConditionKind.ACCURACY_FLOOR_MISSED: "config set planner.objective.accuracy_floor=SHARE",
    ConditionKind.STRATEGY_WITHOUT_PIPELINES: "config set planner.strategy=exact",
    ConditionKind.ROLLOUT_FAILED: "plan show",
    ConditionKind.UNDECIDED: "plan dry-run",
    ConditionKind.REDUNDANCY_MISSING: "plan explain",
    ConditionKind.STATE_DAMAGED: "doctor",
    ConditionKind.MODEL_FILE_DAMAGED: "models fetch {0}",
    ConditionKind.TEXTS_TOO_LONG: "config set models.{0}.slo.latency_s=SECONDS",
    ConditionKind.GPU_ESTIMATED: "gpuagent profile --all",
    ConditionKind.GPU_IMPAIRED: "doctor",
    ConditionKind.PLAN_HELD: "plan unpin",
    ConditionKind.FROZEN: "plan unfreeze",
    ConditionKind.MAINTENANCE: "plan dry-run --apply",
    ConditionKind.PARKED: "config set models.{0}.demand_min_rps=RPS",
    ConditionKind.POWER_LIMITED: "plan explain",
    ConditionKind.POWER_CAPPED: "plan explain",
    ConditionKind.GRID_SERVER_AWAY: "grid list",
    ConditionKind.GRID_EVENT_REFUSED: "grid list",
    ConditionKind.PRICE_UNKNOWN: "config check",
    ConditionKind.CARBON_BUDGET_SHORT: "carbon report",
    ConditionKind.POWER_BELOW_IDLE: "config set sites.{0}.power_budget_w=WATTS",
}
"""Arguments of `cinquefoil` that end a condition, or show what does; {0}: the subject's name."""


def effect_of(condition: Condition) -> Effect:
    """Return the effect of a condition on its subject: a hold stops models that it leaves out."""
    if condition.kind in HOLDS and condition.subject.startswith("model/"):
        return Effect.STOPS
    return EFFECTS[condition.kind]


def command_of(condition: Condition) -> str:
    """Return the command that ends a condition, or shows what does."""
    name = condition.subject.split("/")[1] if "/" in condition.subject else ""
    return f"cinquefoil {_COMMANDS[condition.kind].format(name)}".rstrip()


def concerns_variant(condition: Condition) -> bool:
    """Return whether a condition concerns one variant of a model."""
    return condition.subject.startswith("variant/")


def stops_model(condition: Condition) -> bool:
    """Return whether a condition stops its model: one of a variant leaves the others."""
    return effect_of(condition) is Effect.STOPS and not concerns_variant(condition)


def described(condition: Condition) -> str:
    """Return a condition as a line for a person."""
    setting = f"setting: {condition.setting}; " if condition.setting else ""
    return (
        f"{condition.kind.name} {condition.subject}: {condition.sentence} "
        f"({setting}run: {command_of(condition)})"
    )


def control_off(node: str) -> Condition:
    """Return the condition of a node whose agent may only read (`nodes.<n>.control`)."""
    return Condition(
        ConditionKind.CONTROL_OFF,
        f"node/{node}",
        f"the agent of {node} only reads its node, so no plan uses its GPUs",
        f"nodes.{node}.control",
    )


def concerning(model: str, conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """Return the conditions that explain why a model is not served.

    Those of the model and its variants; where it has none, those of nodes, zones and plan.
    """
    conditions = tuple(conditions)
    own = tuple(
        each
        for each in conditions
        if each.subject == f"model/{model}" or each.subject.startswith(f"variant/{model}/")
    )
    shared = tuple(
        each for each in conditions if not each.subject.startswith(("model/", "variant/"))
    )
    return own if any(map(stops_model, own)) else (*own, *shared)
