"""Conditions: what keeps a node, a model, a plan or a zone from working, and what changes it.

Services compute them, status and `cinquefoil up` show them, errors of requests quote them, and
docs/conditions.md lists them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Self


class Effect(StrEnum):
    """What a condition does to its subject.

    STOPS: it does not work until somebody changes something. WAITS: it does not work yet, and that
    may pass by itself. DEGRADES: it works, but not as well as it should.
    """

    STOPS = "stops"
    WAITS = "waits"
    DEGRADES = "degrades"


class ConditionKind(IntEnum):
    """What is wrong; values are the wire's.

    Attributes:
        effect: What it does to its subject.
    """

    effect: Effect

    CONTROL_OFF = 1, Effect.STOPS
    NODE_AWAY = 2, Effect.WAITS
    GPU_MISSING = 3, Effect.STOPS
    PROVIDER_MISSING = 4, Effect.STOPS
    MODEL_FILE_MISSING = 5, Effect.STOPS
    FIXED_BATCH = 6, Effect.DEGRADES
    WORKER_FAILING = 7, Effect.WAITS
    QUARANTINED = 8, Effect.DEGRADES
    DISK_FULL = 9, Effect.DEGRADES
    ZONE_UNKNOWN = 10, Effect.WAITS
    INTENSITY_STALE = 11, Effect.DEGRADES
    NO_VARIANT_MEETS_SLO = 12, Effect.STOPS
    PROFILE_MISSING = 13, Effect.STOPS
    CAPACITY_MISSING = 14, Effect.DEGRADES
    ACCURACY_FLOOR_MISSED = 15, Effect.DEGRADES
    STRATEGY_WITHOUT_PIPELINES = 16, Effect.STOPS
    ROLLOUT_FAILED = 17, Effect.WAITS
    UNDECIDED = 18, Effect.WAITS
    REDUNDANCY_MISSING = 19, Effect.DEGRADES
    STATE_DAMAGED = 20, Effect.DEGRADES
    MODEL_FILE_DAMAGED = 21, Effect.STOPS
    TEXTS_TOO_LONG = 22, Effect.DEGRADES

    def __new__(cls, number: int, effect: Effect) -> Self:
        """Make a kind that is its number."""
        kind = int.__new__(cls, number)
        kind._value_, kind.effect = number, effect
        return kind


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
        return self.kind.effect

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
