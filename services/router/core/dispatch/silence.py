"""Instances that have fallen silent, and their machines."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from services.router.core.instance_state import InstanceState
from services.router.core.model import InstanceId

_TOGETHER: Final = 2  # silent instances of one machine that make its others suspects


class Silence:
    """The instances that answer nothing.

    A machine that is cut off takes all of its instances along. Once two of one machine are silent,
    its others are suspects until they answer: requests go to other machines first.

    Attributes:
        since_s: Since when each is silent, monotonic s; empty: none is.
    """

    def __init__(self) -> None:
        self.since_s: dict[InstanceId, float] = {}
        self._machines: dict[str, float] = {}

    def begin(self, state: InstanceState, since_s: float) -> None:
        """Note that an instance has answered nothing since a time, for too long."""
        self.since_s.setdefault(state.instance.id, since_s)
        self._count()

    def end(self, instance: InstanceId) -> None:
        """Note a sign of life of an instance, or its end."""
        if self.since_s.pop(instance, None) is not None:
            self._count()

    def others(self, states: Sequence[InstanceState]) -> Sequence[InstanceState]:
        """Return the instances that are not silent; all of them are: all."""
        return _preferred(states, lambda each: each.instance.id not in self.since_s)

    def without_suspects(self, states: Sequence[InstanceState]) -> Sequence[InstanceState]:
        """Return the instances without suspects; all of them are suspects: all."""
        return _preferred(states, lambda each: not self._suspects(each))

    def _suspects(self, state: InstanceState) -> bool:
        since_s = self._machines.get(_machine(state.instance.id))
        return since_s is not None and state.heard_s <= since_s

    def _count(self) -> None:
        silent = Counter(_machine(each) for each in self.since_s)
        self._machines = {
            _machine(each): since_s
            for each, since_s in sorted(self.since_s.items(), key=lambda item: item[1])
            if silent[_machine(each)] >= _TOGETHER
        }


def likeliest(
    states: Sequence[InstanceState], silent: Sequence[InstanceState], since_s: float
) -> Sequence[InstanceState]:
    """Return those of the instances that most probably answer a request that silent ones hold.

    Those that have answered since, else those of other machines, else all.

    Args:
        states: The instances.
        silent: Those that hold the request.
        since_s: Since when they are silent.
    """
    machines = {_machine(each.instance.id) for each in silent}
    speaking = _preferred(states, lambda each: each.heard_s > since_s)
    return _preferred(speaking, lambda each: _machine(each.instance.id) not in machines)


def _preferred(
    states: Sequence[InstanceState], test: Callable[[InstanceState], bool]
) -> Sequence[InstanceState]:
    return [each for each in states if test(each)] or states


def _machine(instance: InstanceId) -> str:
    return instance.endpoint.rpartition(":")[0]
