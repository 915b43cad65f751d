"""Entries of the account added up: who drew what, and what each request cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cinquefoil.planner.v1.planner_pb2 import AccountEntry

KEYS: Final = ("hour", "zone", "node", "model")
FIGURES: Final = tuple(name for name in AccountEntry.DESCRIPTOR.fields_by_name if name not in KEYS)

IDLE: Final = "(idle)"
UNATTRIBUTED: Final = "(other)"
TOTAL: Final = "total"


@dataclass(frozen=True, slots=True)
class Row:
    """What one model, node or zone drew.

    Attributes:
        name: Whose.
        figures: By field of AccountEntry.
    """

    name: str
    figures: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(FIGURES, 0))

    def __getitem__(self, name: str) -> float:
        return self.figures[name]

    def plus(self, entry: AccountEntry) -> Row:
        """Return the row with an entry more in it."""
        added = {name: value + getattr(entry, name) for name, value in self.figures.items()}
        return Row(self.name, added)

    @property
    def saved_gco2e(self) -> float:
        """What BASE would have emitted more for the same requests, gCO2e."""
        return self["base_carbon_gco2e"] - self["carbon_gco2e"]

    @property
    def saved_ratio(self) -> float | None:
        """Of what BASE would have emitted; None: that is nothing."""
        base_gco2e = self["base_carbon_gco2e"]
        return self.saved_gco2e / base_gco2e if base_gco2e > 0 else None

    @property
    def sci_gco2e(self) -> float:
        """Operational and embodied carbon, with the charged share of idle energy, gCO2e."""
        return self["carbon_gco2e"] + self["embodied_gco2e"] + self["idle_share_gco2e"]

    @property
    def gco2e_per_request(self) -> float | None:
        """Software Carbon Intensity (ISO/IEC 21031), R = a request; None: there was none."""
        return self.sci_gco2e / self["requests"] if self["requests"] else None

    @property
    def gco2e_per_token(self) -> float | None:
        """The same with R = a generated token."""
        return self.sci_gco2e / self["output_tokens"] if self["output_tokens"] else None

    def document(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return {
            "name": self.name,
            **self.figures,
            "saved_gco2e": self.saved_gco2e,
            "saved_ratio": self.saved_ratio,
            "gco2e_per_request": self.gco2e_per_request,
            "gco2e_per_token": self.gco2e_per_token,
        }


def rows(entries: Iterable[AccountEntry], by: str) -> list[Row]:
    """Return a row per model, node or zone, in order of name, and the total.

    What no model used is two rows at the end: idle energy and unattributed energy. The total is the
    sum of all rows. Models have their shares of idle energy; nodes, zones and the total have
    all of it already.

    Args:
        entries: Grouped by `by`.
        by: "model", "node" or "zone".
    """
    found: dict[str, Row] = {}
    for entry in entries:
        name = getattr(entry, by)
        found[name] = found.get(name, Row(name)).plus(entry)
    nobodys = found.pop("", None)
    named = [found[name] for name in sorted(found)]
    if by != "model":
        named = [_without_shares(row) for row in named]
    if nobodys is not None:
        named += _nobodys(nobodys)
    total = {name: sum(row[name] for row in named) for name in FIGURES}
    return [*named, _without_shares(Row(TOTAL, total))]


def _without_shares(row: Row) -> Row:
    return Row(row.name, {**row.figures, "idle_share_j": 0.0, "idle_share_gco2e": 0.0})


def _nobodys(row: Row) -> Iterator[Row]:
    """Yield two rows of what no model used; carbon embodied in GPUs meanwhile counts as idle."""
    none = Row("").figures
    for name, joules, grams in (
        (IDLE, "idle_j", "idle_gco2e"),
        (UNATTRIBUTED, "unattributed_j", "unattributed_gco2e"),
    ):
        yield Row(
            name,
            {
                **none,
                joules: row[joules],
                grams: row[grams],
                "energy_j": row[joules],
                "base_energy_j": row[joules],
                "carbon_gco2e": row[grams],
                "base_carbon_gco2e": row[grams],
                "embodied_gco2e": row["embodied_gco2e"] if name == IDLE else 0.0,
            },
        )
