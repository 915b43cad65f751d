"""Entries of the account added up: who drew what, and what each request cost."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC
from types import SimpleNamespace
from typing import Any, Final

from cinquefoil.planner.v1.planner_pb2 import AccountEntry

KEYS: Final = ("hour", "zone", "node", "model")
FIGURES: Final = tuple(name for name in AccountEntry.DESCRIPTOR.fields_by_name if name not in KEYS)

Row = SimpleNamespace
Figures = Mapping[str, float]
"""By field of AccountEntry."""

ERRORS: Final = {
    "profiles": "profile_error_gco2e",
    "meters": "meter_error_gco2e",
    "intensities": "intensity_error_gco2e",
}
"""What the uncertainty of savings comes of, and how much of it."""

IDLE: Final = "(idle)"
UNATTRIBUTED: Final = "(other)"
TOTAL: Final = "total"


def rows(entries: Iterable[AccountEntry], by: str) -> list[Row]:
    """Return a row per model, node or zone, in order of name, and the total.

    What no model used is two rows at the end: idle energy and unattributed energy. The total is the
    sum of all rows. Models have their shares of idle energy; nodes, zones and the total have
    all of it already.

    Args:
        entries: Grouped by `by`.
        by: "model", "node" or "zone".
    """
    groups: defaultdict[str, list[AccountEntry]] = defaultdict(list)
    for entry in entries:
        groups[getattr(entry, by)].append(entry)
    summed = {
        name: {key: sum(getattr(each, key) for each in groups[name]) for key in FIGURES}
        for name in sorted(groups)
    }
    nobodys = summed.pop("", None)
    if by != "model":
        summed = {name: _without_shares(figures) for name, figures in summed.items()}
    if nobodys is not None:
        # Carbon embodied in GPUs meanwhile counts as idle.
        summed[IDLE] = _nobodys("idle", nobodys) | {"embodied_gco2e": nobodys["embodied_gco2e"]}
        summed[UNATTRIBUTED] = _nobodys("unattributed", nobodys)
    total = {key: sum(figures[key] for figures in summed.values()) for key in FIGURES}
    return [_row(*each) for each in (*summed.items(), (TOTAL, _without_shares(total)))]


def by_hour(entries: Iterable[AccountEntry], by: str) -> list[dict[str, Any]]:
    """Return the total of each hour, in order of the hours.

    `hour` is its start (ISO 8601, UTC), `parts_gco2e` what each model, node or zone emitted, gCO2e.
    """
    hours: dict[str, list[AccountEntry]] = {}
    for entry in entries:
        start = entry.hour.ToDatetime(UTC).isoformat(timespec="seconds")
        hours.setdefault(start, []).append(entry)
    found = []
    for start, of_it in hours.items():
        *parts, total = rows(of_it, by)
        emitted = {row.name: row.carbon_gco2e for row in parts}
        found.append(vars(total) | {"hour": start, "parts_gco2e": emitted})
    return found


def _without_shares(figures: Figures) -> dict[str, float]:
    return {**figures, "idle_share_j": 0.0, "idle_share_gco2e": 0.0}


def _nobodys(kind: str, figures: Figures) -> dict[str, float]:
    """Return one kind of what no model used; BASE would have used it, too."""
    joules, grams = figures[f"{kind}_j"], figures[f"{kind}_gco2e"]
    nothing: dict[str, float] = dict.fromkeys(FIGURES, 0)
    return nothing | {
        **dict.fromkeys((f"{kind}_j", "energy_j", "base_energy_j"), joules),
        **dict.fromkeys((f"{kind}_gco2e", "carbon_gco2e", "base_carbon_gco2e"), grams),
    }


def _row(name: str, figures: Figures) -> Row:
    """Return figures with what follows from them; None where there is nothing to divide by.

    `saved_gco2e` is what BASE would have emitted more for the same requests, gCO2e; `saved_ratio`
    is its share of what BASE would have emitted; `saved_error_gco2e` is the half-width of the 95 %
    interval around it. Per request and per generated token: the Software
    Carbon Intensity (ISO/IEC 21031), which is operational and embodied carbon, with the charged
    share of idle energy, gCO2e.
    """
    base_gco2e, spent_gco2e = figures["base_carbon_gco2e"], figures["carbon_gco2e"]
    sci_gco2e = spent_gco2e + figures["embodied_gco2e"] + figures["idle_share_gco2e"]
    requests, tokens = figures["requests"], figures["output_tokens"]
    return Row(
        name=name,
        **figures,
        saved_gco2e=base_gco2e - spent_gco2e,
        saved_error_gco2e=math.hypot(*(figures[error] for error in ERRORS.values())),
        saved_ratio=(base_gco2e - spent_gco2e) / base_gco2e if base_gco2e > 0 else None,
        gco2e_per_request=sci_gco2e / requests if requests else None,
        gco2e_per_token=sci_gco2e / tokens if tokens else None,
    )
