"""Carbon budgets of the live planner: emissions of each period, from the account."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cinquefoil.condition.v1.records import Condition, ConditionKind
from cinquefoil.planner.v1.records import CarbonBudget
from services.kit.clock import Clock
from services.kit.config import CarbonBudget as Settings
from services.kit.errors import ServiceError
from services.kit.telemetry import logs
from services.planner.adapters.store import Store
from services.planner.core.accounting.entries import Grouping, hour_of
from services.planner.core.carbon_budget.control import Course, bounds
from services.planner.core.cycle.cluster_state import ClusterState

_log = logs.get("carbon_budgets")

_LOOK_S: Final = 5.0
_HOUR: Final = timedelta(hours=1)
_LATE: Final = timedelta(hours=3)
"""Age from which an hour of the account is not read again."""


@dataclass(slots=True)
class _Part:
    """Emissions of models or sites in the present period.

    Attributes:
        until: The hour from which on they are read again.
        over_gco2e: Those of the hours before it.
        spent_gco2e: All of them.
    """

    until: datetime
    over_gco2e: float = 0.0
    spent_gco2e: float = 0.0


class LiveCarbonBudgets:
    """Follows what each period has emitted.

    Budgets of the fleet follow its account as it is booked. Those of models and sites are read from
    the database: hours that are over for long are read once.

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
        self._parts: dict[int, _Part] = {}
        self._step: object = None

    async def restore(self) -> None:
        """Continue the present periods; the account is restored before."""
        control, now, total = self._state.carbon, self._clock.now(), self._total_gco2e()
        for n, budget in enumerate(control.budgets):
            start, _ = bounds(budget.per, now)
            spent = await self._read(budget, start, now + _HOUR)
            self._starts.append(start)
            self._before_gco2e.append(total - spent)
            if budget.models or budget.sites:
                self._parts[n] = _Part(start, spent_gco2e=spent)
        self._look()

    async def keep(self) -> None:
        """Follow emissions, and wake the planner where the price is to be found again; for ever."""
        while True:
            if self._state.carbon.budgets:
                try:
                    await self._read_parts()
                except ServiceError as error:
                    _log.warning("emissions of carbon budgets are as before", cause=error.message)
                self._look()
            await self._clock.sleep(_LOOK_S)

    async def _read_parts(self) -> None:
        """Read what models and sites with a budget have emitted."""
        now = self._clock.now()
        for n, part in self._parts.items():
            budget = self._state.carbon.budgets[n]
            start, _ = bounds(budget.per, now)
            if start > part.until:
                part.until, part.over_gco2e = start, 0.0
            lately = hour_of(now) - _LATE
            if lately > part.until:
                part.over_gco2e += await self._read(budget, part.until, lately)
                part.until = lately
            open_gco2e = await self._read(budget, part.until, now + _HOUR)
            part.spent_gco2e = part.over_gco2e + open_gco2e

    async def _read(self, budget: Settings, since: datetime, until: datetime) -> float:
        """Return the emissions of what a budget is of, in some hours, gCO2e."""
        by: Grouping = "model" if budget.models else "node" if budget.sites else "zone"
        entries = await self._store.pages.read(since, until, by)
        if budget.models:
            own = [figures for key, figures in entries if key.model in budget.models]
            return sum(each.carbon_gco2e + each.idle_share_gco2e for each in own)
        fleet = self._state.fleet
        return sum(
            figures.carbon_gco2e
            for key, figures in entries
            if not budget.sites or fleet.site(key.node) in budget.sites
        )

    def _look(self) -> None:
        control, now, total = self._state.carbon, self._clock.now(), self._total_gco2e()
        for n, budget in enumerate(control.budgets):
            start, _ = bounds(budget.per, now)
            if start > self._starts[n]:
                self._starts[n], self._before_gco2e[n] = start, total
        spent = [max(total - before, 0.0) for before in self._before_gco2e]
        for n, part in self._parts.items():
            spent[n] = part.spent_gco2e
        control.spent_gco2e = spent
        if (step := control.step(now)) != self._step:
            self._step = step
            self._state.changed.notify()

    def shown(self) -> Iterator[CarbonBudget]:
        """Yield each budget in its present period."""
        control, now = self._state.carbon, self._clock.now()
        short = control.short(now)
        for n, course in enumerate(control.courses(now)):
            yield CarbonBudget(
                kg=course.budget.kg,
                per=course.budget.per,
                spent_gco2e=course.spent_gco2e,
                expected_gco2e=control.expected_gco2e(n, now),
                start=course.start,
                end=course.end,
                short=course in short,
                models=course.budget.models,
                sites=course.budget.sites,
            )

    def prices(self) -> Mapping[str, float]:
        """Return the emissions that a point of accuracy is worth now, gCO2e by model."""
        state = self._state
        return state.carbon.prices(self._clock.now(), state.forecast)

    def conditions(self) -> Iterator[Condition]:
        """Yield the budgets that are used up, or cannot be kept."""
        control, now = self._state.carbon, self._clock.now()
        for course in control.short(now) if control.budgets else ():
            named = ", ".join((*course.budget.models, *course.budget.sites))
            of = f"/{named}" if named else ""
            yield Condition(
                ConditionKind.CARBON_BUDGET_SHORT,
                f"budget/{course.budget.per}{of}",
                _why(course, now),
                "planner.carbon_budgets",
            )


def _why(course: Course, now: datetime) -> str:
    budget = course.budget
    named = ", ".join((*budget.models, *budget.sites))
    what = f"the carbon budget of {budget.kg:g} kg per {budget.per}{f' of {named}' * bool(named)}"
    spent_kg = course.spent_gco2e / 1e3
    gone = f"{100 * course.gone(now):.0f} % of the {budget.per} is gone"
    if not course.used_up:
        return (
            f"{what} cannot be kept: "
            f"{spent_kg:.3g} kg are used, {gone}, and even the least accurate plans emit more than "
            "is left"
        )
    then = {
        "smallest": "only the least accurate plans run",
        "hold_waiting": "only the least accurate plans run, and what can wait does",
        "exceed": "plans go on at its even rate, beyond it",
    }[budget.at_end]
    return (
        f"{what} is used up ({spent_kg:.3g} kg), "
        f"{gone}: {then} until {course.end:%Y-%m-%d %H:%M} UTC (at_end: {budget.at_end})"
    )
