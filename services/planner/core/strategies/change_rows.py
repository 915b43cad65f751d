"""Rows of the change from what runs, in the program of `exact`: starts, new slices, loading."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from services.planner.core.model import SegmentKind
from services.planner.core.problem.pricing import Prices, row
from services.planner.core.solver.milp import Numbers, Program
from services.planner.core.strategies.columns import distinct, terms_of


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """The rows that price a change.

    Attributes:
        known: The problem and its prices.
        kinds: Segment kinds to choose from.
        program: The program.
        counts, loads: Columns of n and x, in order of `kinds`.
        most: Most segments of each kind.
    """

    known: Prices
    kinds: Sequence[SegmentKind]
    program: Program
    counts: Numbers
    loads: Numbers
    most: Sequence[int]

    def add(self) -> dict[int, float]:
        """Add the rows; return the prices of their columns, points."""
        return self._changes() | self._loading()

    def _changes(self) -> dict[int, float]:
        """Price segments to start and slices to create."""
        known, cost = self.known, dict[int, float]()
        started = {row(kind): known.start_points(kind) for kind in self.kinds}
        if any(started.values()):
            rows, at = distinct(map(row, self.kinds))
            running = [known.running.get(each, 0) for each in rows]
            cost |= self._price_excess([started[each] for each in rows], at, running)
        if known.layout_points:
            groups, at = distinct((kind.pool, kind.profile) for kind in self.kinds)
            there = [known.existing.get(group, 0) for group in groups]
            cost |= self._price_excess([known.layout_points] * len(groups), at, there)
        return cost

    def _price_excess(
        self, points: Sequence[float], at: Numbers, free: Sequence[int]
    ) -> dict[int, float]:
        """Price the excess of each group of segments over those that are free."""
        excess = self.program.columns(len(free))
        rows = self.program.rows(len(free), low=np.negative(free))
        self.program.terms(rows, excess, 1.0)
        self.program.terms(rows[at], self.counts, -1.0)
        return terms_of(excess, points)

    def _loading(self) -> dict[int, float]:
        """Price the longest loading time of a variant of which a segment has to be started."""
        points, times = self.known.loading_points, self.known.loading_s
        pairs = [(kind.model, kind.variant) for kind in self.kinds]
        slow = [index for index, pair in enumerate(pairs) if times.get(pair, 0.0) > 0]
        if not points or not slow:
            return {}
        program, variants = self.program, list(dict.fromkeys(pairs[index] for index in slow))
        loaded = program.columns(len(variants), upper=1.0, integer=True)
        longest = program.column()
        waits = program.rows(len(variants), high=0.0)
        program.terms(waits, loaded, [times[pair] for pair in variants])
        program.terms(waits, longest, -1.0)
        column = dict(zip(variants, loaded, strict=True))
        held = {(model, variant) for model, variant, *_ in self.known.running}
        self._load_new([i for i in slow if pairs[i] not in held], column)
        self._load_more([i for i in slow if pairs[i] in held], column)
        return {longest: points}

    def _load_new(self, kinds: Sequence[int], loaded: Mapping[tuple[str, str], int]) -> None:
        """Require variants without running segments to be loaded before they take requests."""
        answering = [i for i in kinds if not self.kinds[i].stage.index]  # pipelines: the first
        variants, at = distinct((self.kinds[i].model, self.kinds[i].variant) for i in answering)
        uses = self.program.rows(len(variants), high=0.0)
        self.program.terms(uses[at], self.loads[answering], 1.0)
        self.program.terms(uses, [loaded[each] for each in variants], -1.0)

    def _load_more(self, kinds: Sequence[int], loaded: Mapping[tuple[str, str], int]) -> None:
        """Require loading where more segments of a row are used than run."""
        rows, at = distinct(row(self.kinds[i]) for i in kinds)
        most = np.zeros(len(rows))
        np.add.at(most, at, [self.most[i] for i in kinds])
        excess = self.program.rows(len(rows), high=[self.known.running.get(r, 0) for r in rows])
        self.program.terms(excess[at], self.counts[kinds], 1.0)
        self.program.terms(excess, [loaded[r[:2]] for r in rows], -most)
