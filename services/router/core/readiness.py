"""Readiness of models, from the planner's conditions."""

from dataclasses import dataclass

from cinquefoil.condition.v1.records import Condition, ConditionKind
from services.kit.conditions import Effect, concerning, described, effect_of, stops_model
from services.kit.errors import Unavailable

_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """The planner's conditions of the deployment, beside the routing table.

    Attributes:
        conditions: Conditions of nodes, models, plans and zones.
        rolling_out: A plan is being carried out: instances may come with it.
    """

    conditions: tuple[Condition, ...] = ()
    rolling_out: bool = False

    @property
    def stopped(self) -> bool:
        """True if there will be no routes until an operator intervenes."""
        return any(effect_of(each) is Effect.STOPS for each in self.conditions)

    def parked(self, model: str) -> bool:
        """Return whether a model has no instance only because it had no requests."""
        return any(
            each.kind is ConditionKind.PARKED and each.subject == f"model/{model}"
            for each in self.conditions
        )

    def why(self, model: str) -> str:
        """Return the reason why a model has no instance, for an error, with what ends it."""
        found = "".join(f"; {described(each)}" for each in concerning(model, self.conditions))
        if found:
            return found
        if self.rolling_out:
            return "; a plan is being carried out (run: cinquefoil plan watch)"
        return "; no plan has a segment of it yet (run: cinquefoil status)"

    def refusal(self, model: str) -> Unavailable | None:
        """Return the error of a request of a model that no wait will serve; None: it may wait.

        None will if an operator must intervene first, and no rollout is running. What
        concerns one variant may leave others.
        """
        found = concerning(model, self.conditions)
        stops = list(filter(stops_model, found))
        waits = any(effect_of(each) is Effect.WAITS for each in found)
        if self.rolling_out or waits or not stops:
            return None
        return Unavailable(
            f"model {model!r} is not served{self.why(model)}",
            reason=stops[0].kind.name,
            retry_after_s=_RETRY_S,
        )
