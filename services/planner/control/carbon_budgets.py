"""Carbon budgets of the live planner: emissions of each period, from the account."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from cinquefoil.condition.v1.records import Condition, ConditionKind
from cinquefoil.planner.v1.records import CarbonBudget
from services.kit.clock import Clock
from services.planner.adapters.store import Store
from services.planner.core.carbon_budget.control import Course, bounds
from services.planner.core.cycle.cluster_state import ClusterState

_LOOK_S: Final = 5.0
_HOUR: Final = timedelta(hours=1)


class LiveCarbonBudgets:
    """Follows what each period has emitted.

    Args:
        store: The open database, with the account by hour.
        clock: Source of time.
        state: Receives emissions.
        total_gco2e: Returns the fleet's emissions since its account began.
    """

    def __init__(
        self, store: Store, clock: Clock, state: ClusterState, total_gco2e: Callable[[], float]
    ) -> None:
        self._store, self._clock, self._state = store, clock, state
        self._total_gco2e = total_gco2e
        self._starts: list[datetime] = []
        self._before_gco2e: list[float] = []  # total when each period began
        self._step: object = None

    async def restore(self) -> None:
        """Continue the present periods; the account is restored before."""
        control, now, total = self._state.carbon, self._clock.now(), self._total_gco2e()
        for budget in control.budgets:
            start, _ = bounds(budget.per, now)
            entries = await self._store.pages.read(start, now + _HOUR, "zone")
            spent = sum(figures.carbon_gco2e for _, figures in entries)
            self._starts.append(start)
            self._before_gco2e.append(total - spent)
        self._look()

    async def keep(self) -> None:
        """Follow emissions, and wake the planner where the price is to be found again; for ever."""
        while True:
            if self._state.carbon.budgets:
                self._look()
            await self._clock.sleep(_LOOK_S)

    def _look(self) -> None:
        control, now, total = self._state.carbon, self._clock.now(), self._total_gco2e()
        for n, budget in enumerate(control.budgets):
            start, _ = bounds(budget.per, now)
            if start > self._starts[n]:
                self._starts[n], self._before_gco2e[n] = start, total
        control.spent_gco2e = [max(total - before, 0.0) for before in self._before_gco2e]
        if (step := control.step(now)) != self._step:
            self._step = step
            self._state.changed.notify()

    def shown(self) -> Iterator[CarbonBudget]:
        """Yield each budget in its present period."""
        control, now = self._state.carbon, self._clock.now()
        short = control.short(now)
        for course in control.courses(now):
            yield CarbonBudget(
                kg=course.budget.kg,
                per=course.budget.per,
                spent_gco2e=course.spent_gco2e,
                expected_gco2e=control.expected_gco2e(course, now),
                start=course.start,
                end=course.end,
                short=course in short,
            )

    def prices(self) -> Mapping[str, float]:
        """Return the emissions that a point of accuracy is worth now, gCO2e by model."""
        state = self._state
        return state.carbon.prices(self._clock.now(), state.forecast)

    def conditions(self) -> Iterator[Condition]:
        """Yield the budgets that are used up, or cannot be kept."""
        control, now = self._state.carbon, self._clock.now()
        for course in control.short(now) if control.budgets else ():
            yield Condition(
                ConditionKind.CARBON_BUDGET_SHORT,
                f"budget/{course.budget.per}",
                _why(course, now),
                "planner.carbon_budgets",
            )


def _why(course: Course, now: datetime) -> str:
    budget = course.budget
    spent_kg = course.spent_gco2e / 1e3
    gone = f"{100 * course.gone(now):.0f} % of the {budget.per} is gone"
    if not course.used_up:
        return (
            f"the carbon budget of {budget.kg:g} kg per {budget.per} cannot be kept: "
            f"{spent_kg:.3g} kg are used, {gone}, and even the least accurate plans emit more than "
            "is left"
        )
    then = {
        "smallest": "only the least accurate plans run",
        "hold_waiting": "only the least accurate plans run, and what can wait does",
        "exceed": "plans go on at its even rate, beyond it",
    }[budget.at_end]
    return (
        f"the carbon budget of {budget.kg:g} kg per {budget.per} is used up ({spent_kg:.3g} kg), "
        f"{gone}: {then} until {course.end:%Y-%m-%d %H:%M} UTC (at_end: {budget.at_end})"
    )
