"""Kinds of instances, and their turns by the plan's shares.

A plan promises a latency of each kind at its planned share. Were a request given to any instance
with a free credit, slow kinds would get all that fast ones are momentarily too busy for: at a
planned share of 8 % as much as 20 %, and every one of them late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from services.kit.grouping import grouped
from services.router.core.instance_state import InstanceState

MAX_DEBT: Final = 64.0
"""Requests that a kind may owe or be owed; more are forgiven."""


class _Key(NamedTuple):
    """Distinguishes the instances of one kind: segments alike have equal shares."""

    variant: str
    credits: int
    share: float
    zone: str
    gpu_idle_power_w: float


@dataclass(slots=True)
class _Kind:
    states: tuple[InstanceState, ...]
    share: float
    owed: float = 0.0

    @property
    def has_room(self) -> bool:
        return any(len(state.in_flight) < state.most for state in self.states)


class Kinds:
    """The kinds of one model's instances.

    Attributes:
        kinds: By what distinguishes them; empty: there is one only.
    """

    def __init__(self) -> None:
        self.kinds: dict[_Key, _Kind] = {}

    def arrange(self, states: Sequence[InstanceState]) -> None:
        """Sort instances into kinds; what a kind is owed stays."""
        before = self.kinds
        found = grouped((_key(state), state) for state in states)
        if len(found) < 2:
            found = {}
        total = sum(state.share for state in states) or 1.0
        self.kinds = {
            key: _Kind(
                tuple(alike),
                sum(state.share for state in alike) / total,
                before[key].owed if key in before else 0.0,
            )
            for key, alike in found.items()
        }

    def next(self) -> tuple[InstanceState, ...]:
        """Return the instances of the kind whose turn it is; empty: none has room.

        Smooth weighted round robin over all kinds; the turn of one without room goes to the one
        that is owed most, and is repaid later.
        """
        kinds = self.kinds.values()
        best = max(
            (kind for kind in kinds if kind.has_room),
            key=lambda kind: kind.owed + kind.share,
            default=None,
        )
        if best is None:
            return ()
        for kind in kinds:
            kind.owed = min(kind.owed + kind.share, MAX_DEBT)
        best.owed = max(best.owed - 1.0, -MAX_DEBT)
        return best.states


def _key(state: InstanceState) -> _Key:
    instance = state.instance
    return _Key(
        instance.variant,
        state.credits,
        round(instance.share, 12),
        instance.zone,
        instance.gpu_idle_power_w,
    )
