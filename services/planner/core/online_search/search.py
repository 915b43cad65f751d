"""Online search with unknown or outdated profiles: CLOVER's, live (SC'23, section 4.2).

    while (configuration := search.propose()) is not None:
        ...  # roll it out, let it serve for a while
        search.learn(measurement)
    search.best, search.beliefs

As in the paper, a configuration is evaluated by serving with it, the search starts from the last
optimum, and ends after 5 evaluations without a better one. Unlike in the paper, each evaluation
corrects the profiles (`profile_corrections`), and the annealing between two evaluations uses these
beliefs, so that

- no configuration is proposed that is believed to break the SLA, if possible even if cells without
  a measurement are slower than believed (`CAUTION`);
- cells without a measurement are tried if they might save energy (`HOPE`);
- the search also ends once everything that might be better was measured.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from services.kit.errors import InvalidArgument
from services.planner.core.model import Configuration, Problem, Score, SegmentKind
from services.planner.core.online_search.measurement import Measurement, ratios
from services.planner.core.online_search.profile_corrections import Beliefs, Cell
from services.planner.core.problem.catalog import in_time
from services.planner.core.problem.load_split import with_load
from services.planner.core.problem.pricing import Row, prices, row
from services.planner.core.problem.score import score
from services.planner.core.strategies.annealing import THOROUGH, search
from services.planner.core.strategies.candidates import Candidate, Judge, breaks_sla, trimmed
from services.planner.core.strategies.random_search import draws

Key = tuple[Row, int]
"""Identity of a kind: its row and its clock; its figures change with beliefs."""

Name = frozenset[tuple[Key, int]]
"""Identity of a configuration."""

Propose = Callable[[Problem], Iterable[Mapping[SegmentKind, int]]]
"""Configurations worth considering, for a problem with believed figures."""

PROPOSE: Final[Mapping[str, Propose]] = {
    "annealing": lambda posed: (met.configuration.segments for met in search(posed, THOROUGH)),
    "random": lambda posed: (met.configuration.segments for met in draws(posed, THOROUGH)),
}
"""Source of candidates by strategy; the others do not search online."""

SHARE = 1e-3
"""Share of the demand that noise may show as refused by a measured configuration."""


PATIENCE = 5
"""Evaluations without a better configuration that end the search."""

MAX_EVALUATIONS = 20

CAUTION = 1.0
"""Standard deviations by which unmeasured cells are assumed slower."""

HOPE = 1.0
"""Standard deviations by which they are assumed to need less energy."""


class OnlineSearch:
    """One search; the next one takes over its beliefs."""

    def __init__(
        self,
        problem: Problem,
        beliefs: Beliefs | None = None,
        propose: Propose = PROPOSE["annealing"],
    ) -> None:
        """Prepare a search.

        Args:
            problem: Problem with the profiles' figures. Its catalog may hold kinds that miss the
                latency rule: whether they do depends on beliefs.
            beliefs: Beliefs from earlier searches.
            propose: Returns candidates between evaluations.
        """
        self._problem = problem
        self._profiled = {_key(kind): kind for kind in _kinds(problem)}
        self._beliefs = beliefs or Beliefs()
        self._propose = propose
        self._measured: dict[Name, bool] = {}
        self._without_better = 0

    @property
    def beliefs(self) -> Beliefs:
        """Current beliefs, for the next search."""
        return self._beliefs

    @property
    def believed(self) -> Problem:
        """The problem with currently believed figures."""
        return self._believed()

    @property
    def best(self) -> Configuration | None:
        """The best measured configuration that kept the SLA; None: there is none."""
        judge = Judge(self._believed())
        kept = [judge(self._segments(key)) for key, late in self._measured.items() if not late]
        good = [each for each in kept if not breaks_sla(each.score, judge.problem, share=SHARE)]
        best = max(good, key=lambda each: _rank(each.score), default=None)
        return None if best is None else best.configuration

    def propose(self) -> Configuration | None:
        """Return the configuration to evaluate next; None: the search has ended."""
        if self._without_better >= PATIENCE or len(self._measured) >= MAX_EVALUATIONS:
            return None
        for caution in (CAUTION, 0.0):
            found = self._promising(caution)
            if found is not None and found not in self._measured:
                return with_load(prices(self._believed()), self._segments(found))
        return None

    def learn(self, measurement: Measurement) -> None:
        """Learn from a configuration that served for a while, proposed or not.

        Raises:
            InvalidArgument: It has a kind that is neither in the catalog nor running.
        """
        unknown = [kind for kind in measurement.observed if _key(kind) not in self._profiled]
        if unknown:
            raise InvalidArgument(f"measured {unknown[0]}, which the problem does not know")
        before = self.best
        for kind, observed in measurement.observed.items():
            profiled = self._profiled[_key(kind)]
            found = ratios(self._problem.models, profiled, observed, measurement.span_s)
            if found is not None:
                self._beliefs = self._beliefs.measured(Cell.of(profiled), *found)
        self._learn_waits(measurement)
        self._measured[_name(measurement.segments)] = self._was_late(measurement)
        after = self.best
        same = (
            before is not None
            and after is not None
            and _name(before.segments) == _name(after.segments)
        )
        self._without_better = self._without_better + 1 if same or after is None else 0

    def _promising(self, caution: float) -> Name | None:
        """Return the best configuration that keeps the SLA with this much caution.

        A strategy may return kinds that are not in the catalog (BASE does); only their profile
        supports those.
        """
        judge = Judge(self._believed(caution, HOPE))
        believed = set(_kinds(judge.problem))
        met = (
            judge(trimmed(judge(segments).configuration).segments)
            for segments in self._propose(judge.problem)
            if believed.issuperset(segments)
        )
        safe = (candidate for candidate in met if not self._breaks_sla(candidate, judge.problem))
        best = max(safe, key=lambda candidate: candidate.score.worth, default=None)
        return None if best is None else _name(best.configuration.segments)

    def _breaks_sla(self, candidate: Candidate, problem: Problem) -> bool:
        waits = self._beliefs.waits
        latency_s = {
            name: latency_s * max(1.0, waits.get(name, 1.0))
            for name, latency_s in candidate.score.latency_s.items()
        }
        return breaks_sla(replace(candidate.score, latency_s=latency_s), problem)

    def _was_late(self, measurement: Measurement) -> bool:
        slos = {model.name: model.slo_latency_s for model in self._problem.models}
        return any(s > slos.get(name, math.inf) for name, s in measurement.latency_s.items())

    def _learn_waits(self, measurement: Measurement) -> None:
        problem = self._believed()
        served = with_load(prices(problem), self._segments(_name(measurement.segments)))
        predicted_s = score(problem, served).latency_s
        for model, latency_s in measurement.latency_s.items():
            if 0.0 < predicted_s.get(model, 0.0) < math.inf and 0.0 < latency_s < math.inf:
                self._beliefs = self._beliefs.waited(model, latency_s / predicted_s[model])

    def _segments(self, name: Name) -> dict[SegmentKind, int]:
        """Return a configuration with currently believed figures."""
        kinds = {key: self._profiled[key] for key, _ in name}
        corrections = self._beliefs.corrections(Cell.of(kind) for kind in kinds.values())
        return {corrections[Cell.of(kinds[key])].of(kinds[key]): count for key, count in name}

    def _believed(self, caution: float = 0.0, hope: float = 0.0) -> Problem:
        """Return the problem with currently believed figures."""
        corrections = self._beliefs.corrections(Cell.of(k) for k in self._profiled.values())

        def corrected(kind: SegmentKind) -> SegmentKind:
            return corrections[Cell.of(kind)].of(kind, caution=caution, hope=hope)

        models = {model.name: model for model in self._problem.models}
        catalog = map(corrected, self._problem.catalog)
        return replace(
            self._problem,
            catalog=tuple(
                kind
                for kind in catalog
                if in_time(self._problem.objective, models[kind.model], kind)
            ),
            running=tuple(
                replace(segment, kind=corrected(segment.kind)) for segment in self._problem.running
            ),
        )


def _rank(found: Score) -> tuple[float, float]:
    """Larger is better: first the accuracy floor, up to noise, then the objective."""
    return -round(found.floor_violation, 3), found.objective


def _kinds(problem: Problem) -> Iterator[SegmentKind]:
    yield from (segment.kind for segment in problem.running)
    yield from problem.catalog


def _key(kind: SegmentKind) -> Key:
    return row(kind), kind.clock_mhz


def _name(segments: Mapping[SegmentKind, int]) -> Name:
    return frozenset((_key(kind), count) for kind, count in segments.items() if count)
