"""Turns reports of energy and tokens into entries to write."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from services.planner.core.accounting.account import Account, Spent, Tokens
from services.planner.core.accounting.baseline import (
    BaselineRates,
    baseline_entry,
    baseline_spread,
)
from services.planner.core.accounting.counters import (
    EnergyCounters,
    EnergyDrawn,
    ModelEnergy,
    advance,
    bounded,
    together,
)
from services.planner.core.accounting.entries import EntryKey, Figures, hour_of, hours
from services.planner.core.accounting.moved import Moved, MovedKey
from services.planner.core.accounting.site import EmbodiedCarbon, Site, meter_error

_NO_BOARD = EmbodiedCarbon()
_NOTHING = Figures()
_MAX_GPUS: Final = 2**16
_SLACK_S: Final = 5.0
"""Largest difference between the delays of two reports, s."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page to write: entries, and the counters up to which they are booked.

    Attributes:
        account: The account after them; its `page` numbers the pages.
        entries: Entries to add to those already written.
        moved: Requests between regions, to add to those already written.
    """

    account: Account
    entries: Mapping[EntryKey, Figures] = field(default_factory=dict)
    moved: Mapping[MovedKey, Moved] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Metered:
    """Energy that some GPUs drew over the same time, beside BASE's for the same requests.

    Attributes:
        length_s: Length of the time, s.
        gpus: Energy of each GPU, J, by UUID.
        energy_j, carbon_gco2e: Energy of all, J, and its operational carbon, PUE included.
        base_energy_j, base_carbon_gco2e: The same of BASE; that of the GPUs until it is known.
    """

    length_s: float
    gpus: Mapping[str, float]
    energy_j: float = 0.0
    carbon_gco2e: float = 0.0
    base_energy_j: float = 0.0
    base_carbon_gco2e: float = 0.0


class Accountant:
    """The account, and its entries that are not written yet.

    Args:
        site: Returns a node by name; None: the intensity of its zone is unknown so far.
        account: The account as last written.
        on_metered: Receives what is booked.
    """

    def __init__(
        self,
        site: Callable[[str], Site | None],
        account: Account | None = None,
        on_metered: Callable[[Metered], None] = lambda _: None,
    ) -> None:
        self._site = site
        self._on_metered = on_metered
        self._gpus: dict[str, EnergyCounters] = {}
        self.account = self._live(account or Account())
        self._entries: dict[EntryKey, Figures] = {}
        self._moved: dict[MovedKey, Moved] = {}
        self._rates: BaselineRates | None = None
        self._base_of_one: dict[str, Figures] = {}  # BASE's figures of one request, by model
        self._unrated: dict[EntryKey, Figures] = {}
        self._unspread: dict[tuple[datetime, str], int] = {}  # requests that BASE would serve
        self._unused: dict[str, tuple[float, float]] = {}  # by GPU: monotonic time, time left, s

    def bounded(
        self, node: str, reported: Mapping[str, EnergyCounters], now_s: float
    ) -> tuple[dict[str, EnergyCounters], tuple[str, ...]]:
        """Return the counters of a node's GPUs as far as plausible, and the names of those cut.

        Args:
            node: Name.
            reported: Counters by UUID, to be booked next.
            now_s: Monotonic time, s.
        """
        site = self._site(node)
        if site is None:
            return {}, ()
        found, clamped = {}, dict[str, None]()
        for gpu, counters in reported.items():
            last = self.account.gpus.get(gpu)
            available_s = self._available_s(gpu, last, counters, now_s)
            limit_w = site.max_power_w.get(gpu, math.inf)
            found[gpu], cut, used_s = bounded(last, counters, limit_w, available_s)
            clamped |= dict.fromkeys(cut)
            # Never below 0 by rounding: a counter that seems to fall begins a new account.
            left_s = max(available_s - used_s, 0.0)
            self._unused[gpu] = (now_s, min(left_s, _SLACK_S))
        return found, tuple(clamped)

    def _available_s(
        self, gpu: str, last: EnergyCounters | None, reported: EnergyCounters, now_s: float
    ) -> float:
        """Return the time for which no energy was booked, s."""
        if gpu in self._unused:
            read_s, unused_s = self._unused[gpu]
            return unused_s + now_s - read_s
        # The age of a reading from before a restart is known by the wall clock only.
        return _SLACK_S + (max(reported.at_s - last.at_s, 0.0) if last else 0.0)

    def rewind(self, account: Account) -> None:
        """Return to the account as last written: later changes could not be written.

        The counters report them again, as far as plausible.
        """
        self.account = self._live(replace(account, page=self.account.page))
        self._entries, self._unrated, self._unused, self._unspread = {}, {}, {}, {}
        self._moved = {}

    def book(self, node: str, reported: Mapping[str, EnergyCounters]) -> Spent:
        """Book the counters of a node's GPUs by UUID; return what they spent since the last.

        Until the intensity of its zone is known nothing is booked: the next report covers the gap.
        """
        site = self._site(node)
        if site is None:
            return Spent()
        spent, draws = Spent(), dict[tuple[float, float, str], dict[str, EnergyDrawn]]()
        for gpu, counters in reported.items():
            # The most recent report is last: the first is dropped where there are too many.
            self._gpus[gpu], drawn = advance(self._gpus.pop(gpu, None), counters)
            if drawn is not None:
                span = (drawn.start_s, drawn.end_s, drawn.method)
                draws.setdefault(span, {})[gpu] = drawn
        # Most reports are of all GPUs of a node at once: they are booked as one.
        for alike in draws.values():
            board = EmbodiedCarbon.together(site.boards.get(gpu, _NO_BOARD) for gpu in alike)
            drew, based = Spent(), Spent()
            for key, figures in energy_entries(together(alike.values()), site, board):
                self._book(key, figures)
                drew += Spent(figures.energy_j, figures.carbon_gco2e)
                based += self._based(key, figures)
            spent += drew
            self._on_metered(_metered(alike, drew, based))
        while len(self._gpus) > _MAX_GPUS:
            gone = next(iter(self._gpus))
            del self._gpus[gone]
            self._unused.pop(gone, None)
        self.account = replace(self.account, total=self.account.total + spent)
        return spent

    def _live(self, account: Account) -> Account:
        """Return an account whose counters are the dictionary that `book` updates."""
        self._gpus = dict(account.gpus)
        return replace(account, gpus=self._gpus)

    def count(self, router: str, counted: Mapping[str, Tokens], now: datetime) -> None:
        """Add the tokens that a router has counted since it started, by model."""
        self.account, new = self.account.count(router, counted)
        for key, figures in token_entries(hour_of(now), new):
            self._add(key, figures)

    def move(self, moved: Mapping[MovedKey, Moved]) -> None:
        """Add requests that went between regions."""
        for key, each in moved.items():
            self._moved[key] = self._moved.get(key, Moved()) + each

    def rate(self, rates: BaselineRates) -> None:
        """Set BASE's energy per request from now on."""
        self._spread()
        self._rates, self._base_of_one = rates, {}
        unrated, self._unrated = self._unrated, {}
        for key, figures in unrated.items():
            self._rate(key, figures)

    def page(self) -> Page:
        """Return the unwritten entries as the next page; the page after it begins empty."""
        self._spread()
        self._base_of_one = {}  # intensities change
        entries, self._entries = self._entries, {}
        moved, self._moved = self._moved, {}
        self.account = replace(self.account, page=self.account.page + 1)
        return Page(replace(self.account, gpus=dict(self._gpus)), entries, moved)

    def _based(self, key: EntryKey, figures: Figures) -> Spent:
        """Return what BASE spends where a model, or none, spends the figures of an entry."""
        if key.model == NO_MODEL:
            return Spent(figures.base_energy_j, figures.base_carbon_gco2e)
        if key.model not in self._base_of_one:
            one = baseline_spread({(key.hour, key.model): 1}, self._rates or {}, self._site)
            self._base_of_one[key.model] = sum((each for _, each in one), _NOTHING)
        one_request = self._base_of_one[key.model]
        if not one_request.base_energy_j:  # it has no place, or is not known yet
            return Spent(figures.energy_j, figures.carbon_gco2e)
        return Spent(
            one_request.base_energy_j * figures.requests,
            one_request.base_carbon_gco2e * figures.requests,
        )

    def _book(self, key: EntryKey, figures: Figures) -> None:
        self._add(key, figures)
        if key.model == NO_MODEL:
            return
        if self._rates is None:  # BASE's energy is booked once it is known
            self._unrated[key] = self._unrated.get(key, Figures()) + figures
        else:
            self._rate(key, figures)

    def _rate(self, key: EntryKey, figures: Figures) -> None:
        own, served = baseline_entry(key, figures, self._rates or {}, self._site)
        if own is not None:
            self._add(key, own)
        if served:
            at = (key.hour, key.model)
            self._unspread[at] = self._unspread.get(at, 0) + figures.requests

    def _spread(self) -> None:
        """Book BASE's energy for all reports together: it concerns every node."""
        requests, self._unspread = self._unspread, {}
        for key, figures in baseline_spread(requests, self._rates or {}, self._site):
            self._add(key, figures)

    def _add(self, key: EntryKey, figures: Figures) -> None:
        if figures != _NOTHING:
            known = self._entries.get(key)
            self._entries[key] = figures if known is None else known + figures


def _metered(drawn: Mapping[str, EnergyDrawn], drew: Spent, based: Spent) -> Metered:
    """Return the energy that GPUs drew over the same time; `based`: BASE's."""
    one = next(iter(drawn.values()))
    return Metered(
        max(one.end_s - one.start_s, 0.0),
        {gpu: each.total_j for gpu, each in drawn.items()},
        drew.energy_j,
        drew.carbon_gco2e,
        based.energy_j,
        based.carbon_gco2e,
    )


NO_MODEL = ""
"""Model name in the entries of idle and unattributed energy."""


def energy_entries(
    drawn: EnergyDrawn, site: Site, board: EmbodiedCarbon
) -> Iterator[tuple[EntryKey, Figures]]:
    """Yield the entries of one GPU's energy, without BASE's for models.

    A stretch over several hours is spread evenly. Its carbon uses the intensity in force at its
    end. BASE powers the same GPUs: its idle and unattributed energy are the same.

    Args:
        drawn: Energy drawn.
        site: The GPU's node.
        board: Embodied carbon of the GPU, and its split over models.
    """
    passed = 0.0
    for hour, share in hours(drawn.start_s, drawn.end_s):
        before, passed = passed, passed + share
        length_s = share * max(drawn.end_s - drawn.start_s, 0.0)
        embodied_gco2e = board.embodied_gco2e_per_s * length_s
        idle_j, unattributed_j = drawn.idle_j * share, drawn.unattributed_j * share
        other_j = idle_j + unattributed_j
        yield (
            EntryKey(hour, site.zone, site.node, NO_MODEL),
            Figures(
                energy_j=other_j,
                idle_j=idle_j,
                unattributed_j=unattributed_j,
                carbon_gco2e=site.carbon_gco2e(other_j),
                idle_gco2e=site.carbon_gco2e(idle_j),
                unattributed_gco2e=site.carbon_gco2e(unattributed_j),
                embodied_gco2e=embodied_gco2e * (1.0 - sum(board.held.values())),
                base_energy_j=other_j,
                base_carbon_gco2e=site.carbon_gco2e(other_j),
                cost_eur=site.cost_eur(other_j),
            ),
        )
        for model in drawn.models.keys() | board.held.keys():
            used = drawn.models.get(model, ModelEnergy())
            spent_gco2e = site.carbon_gco2e(used.active_j * share)
            held_gco2e = embodied_gco2e * board.held.get(model, 0.0)
            yield (
                EntryKey(hour, site.zone, site.node, model),
                Figures(
                    energy_j=used.active_j * share,
                    carbon_gco2e=spent_gco2e,
                    idle_share_j=used.idle_share_j * share,
                    idle_share_gco2e=site.carbon_gco2e(used.idle_share_j * share),
                    embodied_gco2e=held_gco2e,
                    meter_error_gco2e=-meter_error(drawn.method) * spent_gco2e,
                    intensity_error_gco2e=-site.intensity_error * spent_gco2e,
                    cost_eur=site.cost_eur(used.active_j * share),
                    # Whole requests in each hour that add up to all.
                    requests=round(used.requests * passed) - round(used.requests * before),
                ),
            )


def token_entries(
    hour: datetime, tokens: Mapping[str, Tokens]
) -> Iterator[tuple[EntryKey, Figures]]:
    """Yield the entries of tokens, by model; their zone and node are unknown."""
    for model, each in tokens.items():
        figures = Figures(
            input_tokens=each.input, output_tokens=each.output, cached_input_tokens=each.cached
        )
        yield EntryKey(hour, "", "", model), figures
