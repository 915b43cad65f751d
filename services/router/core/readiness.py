"""Why a model is not served, by the planner's conditions."""

from dataclasses import dataclass

from cinquefoil.condition.v1.records import Condition
from services.kit.conditions import Effect, concerning, described, effect_of, stops_model
from services.kit.errors import Unavailable

_RETRY_S = 5.0


@dataclass(frozen=True, slots=True)
class Readiness:
    """What the planner says of the deployment, beside the routing table.

    Attributes:
        conditions: What keeps nodes, models, plans and zones from working.
        rolling_out: A plan is being carried out: instances may come with it.
    """

    conditions: tuple[Condition, ...] = ()
    rolling_out: bool = False

    @property
    def stopped(self) -> bool:
        """Whether something must be changed before there can be routes."""
        return any(effect_of(each) is Effect.STOPS for each in self.conditions)

    def why(self, model: str) -> str:
        """Return why a model has no instance, to be appended to an error; "": it is not known."""
        return "".join(f"; {described(each)}" for each in concerning(model, self.conditions))

    def refusal(self, model: str) -> Unavailable | None:
        """Return why a request of a model without instances would wait in vain; None: it may wait.

        It would where somebody must change something first, and nothing else is awaited. What
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
