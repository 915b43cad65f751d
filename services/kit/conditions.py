"""Conditions: what keeps a node, a model, a plan or a zone from working, and what changes it.

Services compute them, status and `cinquefoil up` show them, errors of requests quote them, and
docs/conditions.md lists them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Effect(StrEnum):
    """What a condition does to its subject.

    STOPS: it does not work until somebody changes something. WAITS: it does not work yet, and that
    may pass by itself. DEGRADES: it works, but not as well as it should.
    """

    STOPS = "stops"
    WAITS = "waits"
    DEGRADES = "degrades"


class ConditionKind(IntEnum):
    """What is wrong; values are the wire's."""

    CONTROL_OFF = 1
    NODE_AWAY = 2
    GPU_MISSING = 3
    PROVIDER_MISSING = 4
    MODEL_FILE_MISSING = 5
    FIXED_BATCH = 6
    WORKER_FAILING = 7
    QUARANTINED = 8
    DISK_FULL = 9
    ZONE_UNKNOWN = 10
    INTENSITY_STALE = 11
    NO_VARIANT_MEETS_SLO = 12
    PROFILE_MISSING = 13
    CAPACITY_MISSING = 14
    ACCURACY_FLOOR_MISSED = 15
    STRATEGY_WITHOUT_PIPELINES = 16
    ROLLOUT_FAILED = 17
    UNDECIDED = 18
    REDUNDANCY_MISSING = 19
    STATE_DAMAGED = 20
    MODEL_FILE_DAMAGED = 21
    TEXTS_TOO_LONG = 22


_EFFECTS = {
    Effect.WAITS: (
        ConditionKind.NODE_AWAY,
        ConditionKind.WORKER_FAILING,
        ConditionKind.ZONE_UNKNOWN,
        ConditionKind.ROLLOUT_FAILED,
        ConditionKind.UNDECIDED,
    ),
    Effect.DEGRADES: (
        ConditionKind.FIXED_BATCH,
        ConditionKind.QUARANTINED,
        ConditionKind.DISK_FULL,
        ConditionKind.INTENSITY_STALE,
        ConditionKind.CAPACITY_MISSING,
        ConditionKind.ACCURACY_FLOOR_MISSED,
        ConditionKind.REDUNDANCY_MISSING,
        ConditionKind.STATE_DAMAGED,
        ConditionKind.TEXTS_TOO_LONG,
    ),
}
_EFFECT_OF = {kind: effect for effect, kinds in _EFFECTS.items() for kind in kinds}


@dataclass(frozen=True, slots=True, order=True)
class Condition:
    """One thing that is wrong; fields mirror `condition.proto`.

    Attributes:
        kind: What is wrong.
        subject: What it concerns, for example "node/node-0" or "model/digits".
        sentence: What is wrong, for a person; it changes only where the condition does.
        setting: The key of the deployment file that changes it; "": none does.
    """

    kind: ConditionKind
    subject: str
    sentence: str
    setting: str = ""

    @property
    def effect(self) -> Effect:
        """What it does to its subject."""
        return _EFFECT_OF.get(self.kind, Effect.STOPS)

    @property
    def of_variant(self) -> bool:
        """Whether it concerns one variant of a model."""
        return self.subject.startswith("variant/")

    def __str__(self) -> str:
        setting = f" (setting: {self.setting})" if self.setting else ""
        return f"{self.kind.name} {self.subject}: {self.sentence}{setting}"


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
    stops = any(each.effect is Effect.STOPS and not each.of_variant for each in own)
    return own if stops else (*own, *shared)
