"""The last known state of services that do not answer, and its age."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, Final

_PARTS: Final = {
    "planner": (
        *("gpus", "pues", "conditions", "away", "orders", "drifts"),
        *("plan", "leader", "hold", "totals", "grid_events", "sites", "regions"),
    ),
    "router": ("models",),
    "carbon": ("zones",),
}
"""Parts of the status by the service that they come from."""


class LastKnown:
    """Keeps each service's part of the status for the time in which it does not answer."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Know nothing yet; `clock` is monotonic time, s."""
        self._clock = clock
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}

    def fill(self, status: SimpleNamespace) -> dict[str, int]:
        """Put what was last known in the place of what is missing; return its age by service, s."""
        ages_s = {}
        for service, names in _PARTS.items():
            if _answers(service, status.problems):
                part = {name: getattr(status, name) for name in names}
                self._known[service] = self._clock(), part
            elif service in self._known:
                at_s, part = self._known[service]
                vars(status).update(part)
                ages_s[service] = round(self._clock() - at_s)
        return ages_s


def _answers(service: str, problems: Iterable[str]) -> bool:
    return not any(each.startswith(f"{service} at ") for each in problems)
