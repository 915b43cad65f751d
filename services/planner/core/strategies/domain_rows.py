"""Rows for the loss of any one failure domain, in the program of `exact`.

Columns, per model m that must survive a loss or have several segments, domain d, GPU g:

    r_m   share of what must survive that is not served after the worst loss
    e_m   segments, or domains with one, that are missing, as a share of `replicas_min`
    w_mt  most segments of one domain that take a share of at least t (integer)
    x_sg  segments of kind s on GPU g (integer); y_ghc: whether g has layout c at clock h

The rows without places are necessary, not sufficient: with D domains and c_s the share that one
segment takes after the loss,

    sum_s c_s * n_s - lost_m + r_m >= 1     lost_m >= sum_s c_s * n_s / D,  lost_m >= t * w_mt
    D * w_mt >= sum of n_s with c_s >= t    sum_s n_s >= replicas_min * (1 - e_m)
    sum_phc y_phc >= the fewest domains that can keep the promises

They keep the program small, and its plans nearly always have places that keep the promise. Where
they do not, the rows with places are added, for few GPUs:

    sum_s c_s * (n_s - x_sd) + r_m >= 1 for each d       sum_g x_sg = n_s,  sum_g y_ghc = y_phc
    sum_{s of hk} x_sg <= sum_c count(c, k) * y_ghc      domains with a segment >= replicas_min

Segments of several GPUs have columns by node, x_sN, beside the layouts of its GPUs:

    sum_N x_sN = n_s     sum_s g_s * x_sN + sum_{g of N} y_ghc <= the GPUs of N
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from services.kit.grouping import grouped
from services.kit.mig import maximal_layouts
from services.planner.core.model import Gpu, Model, Pool, SegmentKind
from services.planner.core.problem.failure_domains import (
    demanding,
    domains_of,
    domains_wanted,
    least_domains,
    surviving_share,
)
from services.planner.core.problem.pricing import Prices
from services.planner.core.solver.milp import Numbers, Program

LEAST_LOAD = 0.25
"""Least load of a segment of a model that must survive, as a share of an equal part of its demand.

A segment without load is no proof that it would serve.
"""

ALIKE = 1e-3
"""Difference of two shares that counts as none."""


@dataclass(slots=True)
class DomainRows:
    """The rows of all models that must survive a loss or have several segments.

    Attributes:
        known: The problem and its prices.
        kinds: Segment kinds to choose from.
        program: The program.
        counts: Columns of n, in order of `kinds`.
        margin: Further share of what must survive that is to be served.
        missing: Columns that must be 0 where the promises are kept.
    """

    known: Prices
    kinds: Sequence[SegmentKind]
    program: Program
    counts: Numbers
    margin: float = 0.0
    missing: list[int] = field(default_factory=list)
    _short: dict[str, int] = field(default_factory=dict)
    _left: dict[str, int] = field(default_factory=dict)

    def add(self, layouts: Mapping[tuple[Pool, int], Numbers]) -> None:
        """Add the rows without places.

        Args:
            layouts: Columns that count GPUs in each maximal layout, by pool and clock.
        """
        for name, model in self.known.models.items():
            if demanding(model):
                first = [
                    at
                    for at, kind in enumerate(self.kinds)
                    if kind.model == name and not kind.stage.index
                ]
                domains = self._domains(model, first)
                pools = {gpu.pool for gpus in domains.values() for gpu in gpus}
                used = [
                    (int(column), 1.0)
                    for (pool, _), columns in layouts.items()
                    if pool in pools
                    for column in columns
                ]
                together = [at for at in first if self.kinds[at].gpus > 1]
                used += [(int(self.counts[at]), float(self.kinds[at].gpus)) for at in together]
                least = float(least_domains(model, len(domains)))
                if any(kind.gpus > 1 for kind in self.kinds):  # they may leave fewer
                    used.append((self.program.column(upper=1.0), least))
                    self.missing.append(used[-1][0])
                if used and not self.known.problem.sites:  # a power budget may allow fewer
                    self.program.row(used, low=least)
                self._add_replicas(model, first)
                if model.survive and len(domains) > 1:
                    self._add_survival(model, first, len(domains))

    def _domains(self, model: Model, kinds: Sequence[int]) -> dict[str, list[Gpu]]:
        pools = {self.kinds[at].pool for at in kinds}
        return domains_of(model, (gpu for gpu in self.known.problem.gpus if gpu.pool in pools))

    def _share(self, model: Model, at: int) -> float:
        return surviving_share(self.known.problem.objective, model, self.kinds[at])

    def _add_replicas(self, model: Model, kinds: Sequence[int]) -> None:
        if model.replicas_min > 1:
            least = float(model.replicas_min)
            short = self._short[model.name] = self.program.column(upper=1.0)
            self.missing.append(short)
            counted = ((int(self.counts[at]), 1.0) for at in kinds)
            self.program.row([(short, least), *counted], low=least)

    def _add_survival(self, model: Model, kinds: Sequence[int], domains: int) -> None:
        program = self.program
        left = self._left[model.name] = program.column(upper=1.0)
        self.missing.append(left)
        lost = program.column()
        shares = {at: self._share(model, at) for at in kinds}
        held = [(int(self.counts[at]), share) for at, share in shares.items() if share > 0]
        wanted = 1.0 + self.margin
        program.row([(left, wanted), (lost, -1.0), *held], low=wanted)
        program.row([(lost, float(domains)), *((at, -share) for at, share in held)], low=0.0)
        before = 2.0
        for share in sorted({share for _, share in held}, reverse=True):
            if share < before * (1 - ALIKE):
                before = share
                most = program.column(integer=True)
                large = ((at, -1.0) for at, each in held if each >= share)
                program.row([(most, float(domains)), *large], low=0.0)
                program.row([(lost, 1.0), (most, -share)], low=0.0)

    def add_least_load(self, kind: SegmentKind, count: int, load: int) -> None:
        """Give every segment of a kind some load.

        Args:
            kind: The kind.
            count: Column with the number of its segments.
            load: Column with their load.
        """
        model = self.known.models[kind.model]
        equal = 1.0 / max(2, model.replicas_min)
        share = min(self.known.usable_rps(kind) / model.demand_rps, equal)
        self.program.row([(load, 1.0), (count, -LEAST_LOAD * share)], low=0.0)

    def add_places(self, layouts: Mapping[tuple[Pool, int], Numbers]) -> None:
        """Add the rows with places.

        Args:
            layouts: As for `add`.
        """
        models = {name: each for name, each in self.known.models.items() if demanding(each)}
        placed = [
            at
            for at, kind in enumerate(self.kinds)
            if kind.model in models and kind.gpus == 1  # others hold GPUs of their own
        ]
        on_gpu, whole = self._on_gpus(placed, layouts)
        on_node = self._on_nodes(whole)
        for at in dict.fromkeys((*placed, *(at for at, _ in on_node))):
            held = (*on_gpu.items(), *on_node.items())
            parts = ((column, 1.0) for (each, _), column in held if each == at)
            self.program.row([(int(self.counts[at]), -1.0), *parts], low=0.0, high=0.0)
        for model in models.values():
            own = [at for at, kind in enumerate(self.kinds) if kind.model == model.name]
            places = on_gpu | (on_node if model.spread == "node" else {})
            self._add_losses(model, own, places)
            self._add_spread(model, own, places)

    def _on_nodes(self, whole: Mapping[str, Sequence[int]]) -> dict[tuple[int, str], int]:
        """Add columns for the segments of several GPUs on each node, beside its GPUs' layouts.

        Args:
            whole: Columns of layouts by UUID of their GPU.
        """
        on_node: dict[tuple[int, str], int] = {}
        together = [at for at, kind in enumerate(self.kinds) if kind.gpus > 1]
        gpus = self.known.problem.gpus if together else ()
        for (node, pool), here in grouped(((gpu.node, gpu.pool), gpu) for gpu in gpus).items():
            terms = [(column, 1.0) for gpu in here for column in whole[gpu.uuid]]
            for at in together:
                size = self.kinds[at].gpus
                if self.kinds[at].pool == pool and size <= len(here):
                    column = self.program.column(upper=len(here) // size, integer=True)
                    on_node[at, node] = column
                    terms.append((column, float(size)))
            self.program.row(terms, high=float(len(here)))
        return on_node

    def _on_gpus(
        self, placed: Sequence[int], layouts: Mapping[tuple[Pool, int], Numbers]
    ) -> tuple[dict[tuple[int, str], int], dict[str, list[int]]]:
        """Add columns for the segments on each GPU, and for its layout; return both."""
        program = self.program
        on_gpu: dict[tuple[int, str], int] = {}
        of_gpu: dict[str, list[int]] = {gpu.uuid: [] for gpu in self.known.problem.gpus}
        whole: dict[int, list[int]] = {int(each): [] for row in layouts.values() for each in row}
        for gpu in self.known.problem.gpus:
            one = program.rows(1, high=1.0)
            for (pool, clock_mhz), counted in layouts.items():
                if pool != gpu.pool:
                    continue
                columns = program.columns(len(counted), upper=1.0, integer=True)
                program.terms(one, columns, 1.0)
                of_gpu[gpu.uuid] += columns.tolist()
                for column, total in zip(columns.tolist(), counted.tolist(), strict=True):
                    whole[total].append(column)
                here = [
                    at
                    for at in placed
                    if (self.kinds[at].pool, self.kinds[at].clock_mhz) == (pool, clock_mhz)
                ]
                for profile, group in grouped((self.kinds[at].profile, at) for at in here).items():
                    slots = [
                        sum(place.profile == profile for place in layout)
                        for layout in maximal_layouts(pool.type.geometry)
                    ]
                    added = program.columns(len(group), upper=max(slots), integer=True)
                    on_gpu |= {(at, gpu.uuid): int(x) for at, x in zip(group, added, strict=True)}
                    row = program.rows(1, high=0.0)
                    program.terms(row, added, 1.0)
                    program.terms(row, columns, -np.array(slots, dtype=float))
        for total, parts in whole.items():
            program.row([(total, -1.0), *((each, 1.0) for each in parts)], low=0.0, high=0.0)
        return on_gpu, of_gpu

    def _add_losses(
        self, model: Model, own: Sequence[int], on_gpu: Mapping[tuple[int, str], int]
    ) -> None:
        """Require what must survive the loss of each domain; of a pipeline, at each stage."""
        left = self._left.get(model.name)
        if left is None:
            return
        share = {at: self._share(model, at) for at in own}
        stages = grouped((self.kinds[at].variant, at) for at in own if self.kinds[at].stage.of > 1)
        for domain, gpus in self._domains(model, own).items():
            gone = {domain, *(gpu.uuid for gpu in gpus)}

            def kept(at: int, gone: set[str] = gone) -> list[tuple[int, float]]:
                """Return the terms of a kind's segments elsewhere."""
                lost = (on_gpu[at, uuid] for uuid in gone if (at, uuid) in on_gpu)
                return [(int(self.counts[at]), share[at]), *((x, -share[at]) for x in lost)]

            whole = [term for at in own if self.kinds[at].stage.of == 1 for term in kept(at)]
            for parts in stages.values():
                served = self.program.column(upper=1.0)
                whole.append((served, 1.0))
                for stage in range(self.kinds[parts[0]].stage.of):
                    mine = [at for at in parts if self.kinds[at].stage.index == stage]
                    terms = [term for at in mine for term in kept(at)]
                    self.program.row([(served, -1.0), *terms], low=0.0)
            self.program.row([(left, 1.0), *whole], low=1.0)
        if model.spread != "node":
            self._add_loss_of_groups(own, left, share)

    def _add_loss_of_groups(
        self, own: Sequence[int], left: int, share: Mapping[int, float]
    ) -> None:
        """Require what must survive the loss of a segment of several GPUs, with any one of them."""
        program, most = self.program, float(len(self.known.problem.gpus))
        held = [(int(self.counts[at]), share[at]) for at in own if self.kinds[at].stage.of == 1]
        for at in own:
            if self.kinds[at].gpus > 1:
                used = program.column(upper=1.0, integer=True)
                program.row([(int(self.counts[at]), -1.0), (used, most)], low=0.0)
                program.row([(left, 1.0), *held, (used, -share[at])], low=1.0)

    def _add_spread(
        self, model: Model, own: Sequence[int], on_gpu: Mapping[tuple[int, str], int]
    ) -> None:
        """Require segments in as many domains as wanted."""
        domains = self._domains(model, own)
        wanted = float(domains_wanted(model, len(domains)))
        if wanted < 2:
            return
        first = [at for at in own if not self.kinds[at].stage.index]
        used = self.program.columns(len(domains), upper=1.0, integer=True)
        for column, (domain, gpus) in zip(used.tolist(), domains.items(), strict=True):
            places = (domain, *(gpu.uuid for gpu in gpus))
            there = [
                (on_gpu[at, each], 1.0) for at in first for each in places if (at, each) in on_gpu
            ]
            self.program.row([(column, -1.0), *there], low=0.0)
        parts = [(column, 1.0) for column in used.tolist()]
        if model.spread != "node":  # a segment of several GPUs shares none with another
            together = (at for at in first if self.kinds[at].gpus > 1)
            parts += [(int(self.counts[at]), 1.0) for at in together]
        self.program.row([(self._short[model.name], wanted), *parts], low=wanted)
