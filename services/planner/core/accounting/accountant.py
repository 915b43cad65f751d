"""Turns reports of energy and tokens into entries to write."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from services.planner.core.accounting.account import Account, Spent, Tokens
from services.planner.core.accounting.baseline import BaselineRates, baseline_entries
from services.planner.core.accounting.counters import EnergyCounters, advance
from services.planner.core.accounting.entries import EntryKey, Figures, hour_of
from services.planner.core.accounting.hourly_entries import NO_MODEL, energy_entries, token_entries
from services.planner.core.accounting.site import EmbodiedCarbon, Site

_NO_BOARD = EmbodiedCarbon()


@dataclass(frozen=True, slots=True)
class Page:
    """What is written at once: entries, and up to where the counters are in them.

    Attributes:
        account: As it stands after them; its `page` numbers the pages.
        entries: To be added to what is written already.
    """

    account: Account
    entries: Mapping[EntryKey, Figures] = field(default_factory=dict)


class Accountant:
    """The account and what is not written of it yet.

    Args:
        site: Returns a node by name; None: the intensity of its zone is not known yet.
        account: As last written.
    """

    def __init__(self, site: Callable[[str], Site | None], account: Account | None = None) -> None:
        self.account = account or Account()
        self._site = site
        self._entries: dict[EntryKey, Figures] = {}
        self._rates: BaselineRates | None = None
        self._unrated: dict[EntryKey, Figures] = {}

    def read(self, node: str, told: Mapping[str, EnergyCounters]) -> Spent:
        """Take in the counters of a node's GPUs, by UUID; return what was spent since the last.

        Before the intensity of its zone is known nothing is booked: the counters keep it.
        """
        site = self._site(node)
        if site is None:
            return Spent()
        gpus, spent = {}, Spent()
        for gpu, counters in told.items():
            gpus[gpu], drawn = advance(self.account.gpus.get(gpu), counters)
            if drawn is None:
                continue
            for key, figures in energy_entries(drawn, site, site.boards.get(gpu, _NO_BOARD)):
                self._book(key, figures)
                spent += Spent(figures.energy_j, figures.carbon_gco2e)
        self.account = self.account.spend(spent, gpus)
        return spent

    def count(self, router: str, told: Mapping[str, Tokens], now: datetime) -> None:
        """Take in the tokens that a router has counted since it started, by model."""
        self.account, new = self.account.count(router, told)
        tokens = {model: (each.input, each.output) for model, each in new.items()}
        for key, figures in token_entries(hour_of(now), tokens):
            self._add(key, figures)

    def rate(self, rates: BaselineRates) -> None:
        """Take in what BASE draws for a request from now on."""
        self._rates = rates
        unrated, self._unrated = self._unrated, {}
        for key, figures in unrated.items():
            self._rate(key, figures)

    def page(self) -> Page:
        """Return what is not written yet, as the next page; the one after begins empty."""
        entries, self._entries = self._entries, {}
        self.account = replace(self.account, page=self.account.page + 1)
        return Page(self.account, entries)

    def _book(self, key: EntryKey, figures: Figures) -> None:
        self._add(key, figures)
        if key.model == NO_MODEL:
            return
        if self._rates is None:  # what BASE draws is booked once it is known
            self._unrated[key] = self._unrated.get(key, Figures()) + figures
        else:
            self._rate(key, figures)

    def _rate(self, key: EntryKey, figures: Figures) -> None:
        for where, instead in baseline_entries(key, figures, self._rates or {}, self._site):
            self._add(where, instead)

    def _add(self, key: EntryKey, figures: Figures) -> None:
        if figures != Figures():
            self._entries[key] = self._entries.get(key, Figures()) + figures
