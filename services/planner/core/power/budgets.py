"""Power budgets of sites in time: from the deployment file, and from grid events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from services.kit.config import Site
from services.planner.core.power.meters import SiteMeter

MAX_BUDGETS: Final = 10_000
"""Most budgets beside those of the deployment file: one search through them stays short."""

_BEGINNING, _END = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class PowerBudget:
    """Most power that a site may draw during a time.

    Attributes:
        site: Name of the site.
        limit_w: Most power at the wall, W, >= 0.
        setting: Setting or event that it is from, such as "sites.hall.power_budget_w".
        start: When it begins, UTC.
        end: When it ends, UTC.
    """

    site: str
    limit_w: float
    setting: str
    start: datetime = _BEGINNING
    end: datetime = _END

    def applies(self, now: datetime, until: datetime) -> bool:
        """Return whether it is in force now, or begins before `until`."""
        return self.start <= now < self.end or now < self.start < until


@dataclass(slots=True)
class PowerBudgets:
    """Budgets of all sites; the strictest one in force counts.

    Attributes:
        sites: Sites of the deployment by name.
        events: Further budgets, such as of grid events; those of unknown sites have no effect.
        meters: Meters of the sites that have a budget now.
    """

    sites: Mapping[str, Site] = field(default_factory=dict)
    events: tuple[PowerBudget, ...] = ()
    meters: dict[str, SiteMeter] = field(default_factory=dict)

    def margin(self, site: str) -> float:
        """Return the share of a site's budget that plans leave unused."""
        return self.meters[site].margin if site in self.meters else 0.0

    def set_events(self, events: Iterable[PowerBudget]) -> bool:
        """Replace the budgets of grid events; return whether they changed.

        Raises:
            ValueError: There are more than MAX_BUDGETS, or a limit is no power.
        """
        found = tuple(events)
        if len(found) > MAX_BUDGETS:
            raise ValueError(f"at most {MAX_BUDGETS} budgets, got {len(found)}")
        for each in found:
            if not (math.isfinite(each.limit_w) and each.limit_w >= 0):
                raise ValueError(f"limit_w of {each.setting}: must be >= 0, got {each.limit_w}")
        changed, self.events = found != self.events, found
        return changed

    def in_force(
        self,
        now: datetime,
        until: datetime | None = None,
        lowest_w: Mapping[str, float] | None = None,
    ) -> dict[str, PowerBudget]:
        """Return the strictest budget of each site that has one.

        Args:
            now: Time, UTC.
            until: End of the time in which any budget counts; None: `now` alone.
            lowest_w: Power of sites that serve nothing, W. A plan below it is empty, and made in no
                time: such a budget counts once it has begun, so that nothing is refused before.
        """
        found: dict[str, PowerBudget] = {}
        for each in (*self._lasting(), *self.events):
            known = found.get(each.site)
            stricter = known is None or each.limit_w < known.limit_w
            reachable = each.start <= now or each.limit_w >= (lowest_w or {}).get(each.site, 0.0)
            if (
                each.site in self.sites
                and stricter
                and reachable
                and each.applies(now, until or now)
            ):
                found[each.site] = each
        return found

    def changes_s(self, now: datetime, ahead: timedelta = timedelta()) -> float:
        """Return the time until `in_force(now, now + ahead)` may change, s; infinite: never."""
        bounds = (at for each in self.events for at in (each.start, each.end))
        found = ((at - now).total_seconds() for at in bounds if at not in {_BEGINNING, _END})
        ahead_s = ahead.total_seconds()
        times_s = (at_s - early_s for at_s in found for early_s in (0.0, ahead_s))
        return min((at_s for at_s in times_s if at_s > 0), default=math.inf)

    def _lasting(self) -> Iterable[PowerBudget]:
        for name, site in self.sites.items():
            if site.power_budget_w is not None:
                yield PowerBudget(name, site.power_budget_w, f"sites.{name}.power_budget_w")
