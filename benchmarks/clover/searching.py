"""Cost of a search to users: live evaluations, and those that break the SLA (Fig. 12).

The paper's searchers know no profiles: every configuration that they evaluate serves real
requests for minutes. `exact` needs profiles and no live evaluation. Between the two is our online
search, here in a world whose true times and energies differ from the profiles by ERROR.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean

from benchmarks import _fleets as fleets
from benchmarks.clover.live import Factor, World
from benchmarks.clover.setting import ZONE, Setting, intensities
from services.planner.core.model import Configuration, Problem, Score, Segment, SegmentKind
from services.planner.core.online_search.profile_corrections import Beliefs
from services.planner.core.online_search.search import OnlineSearch
from services.planner.core.placement.placement import place
from services.planner.core.problem.catalog import in_time
from services.planner.core.problem.score import score
from services.planner.core.strategies.annealing import PAPER, Schedule, search
from services.planner.core.strategies.base import base
from services.planner.core.strategies.candidates import Candidate
from services.planner.core.strategies.exact import exact
from services.planner.core.strategies.random_search import draws

ERROR = 0.1
"""Standard deviation of the logarithm of true over profiled time, and of energy."""

CHANGE = 0.05
"""Relative change of the carbon intensity that starts a search (section 4.2)."""

SLACK = 1.25

SHORT = Schedule(patience=30, walks=2, evaluations=100)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One configuration that served. Attributes: hour of the trace; broken: it missed the SLO."""

    hour: int
    broken: bool


@dataclass(frozen=True, slots=True)
class Searched:
    """48 hours of a searcher. Attributes: evaluations; gaps to the optimum after each search."""

    evaluations: tuple[Evaluation, ...]
    gaps: tuple[float, ...]

    @property
    def figures(self) -> dict[str, float]:
        """Return the figures to report."""
        return {
            "searches": len(self.gaps),
            "live_evaluations": len(self.evaluations),
            "breaking_sla": sum(each.broken for each in self.evaluations),
            "gap_to_oracle_points": fmean(self.gaps),
        }


def clover(setting: Setting) -> Searched:
    """Return the paper's annealing, live."""
    return _paper(setting, search)


def blover(setting: Setting) -> Searched:
    """Return the paper's random search, live."""
    return _paper(setting, draws)


def planned(setting: Setting) -> Searched:
    """Return `exact`, which evaluates nothing live."""
    triggered = list(_triggers(setting))
    return Searched((), tuple(0.0 for _ in triggered))


def online(setting: Setting) -> Searched:
    """Return our online search with wrong profiles; what it learns stays from hour to hour.

    The SLO is wider by SLACK: at the usual one, a BASE that is any slower than its profile breaks
    it, and which configurations keep it is a matter of luck.
    """
    setting = replace(setting, slack=SLACK)
    new_id, running, beliefs = fleets.ids(), tuple[Segment, ...](), Beliefs()
    gpus, evaluations, gaps = setting.fleet(1.0), list[Evaluation](), list[float]()
    factor = wrong(setting.application)
    for hour, intensity in _triggers(setting):
        gpus, running = fleets.rolled_out(gpus, running, {ZONE: intensity})
        problem = setting.problem(gpus, running, seed=hour)
        world = World.behind(problem, factor)
        steps = OnlineSearch(problem, beliefs, propose=_propose)
        steps.learn(world.measure(base(problem) if not running else _serving(problem)))
        while (proposal := steps.propose()) is not None:
            evaluations.append(Evaluation(hour, _late(world.score(proposal), problem)))
            steps.learn(world.measure(proposal))
        beliefs, best = steps.beliefs, steps.best or base(problem)
        known = world.known()
        top = score(known, exact(_feasible(known)))
        gaps.append(top.objective - world.score(best).objective)
        running = _profiled(problem, place(problem, best, new_id))
    return Searched(tuple(evaluations), tuple(gaps))


SEARCHERS: Mapping[str, Callable[[Setting], Searched]] = {
    "annealing, live (paper)": clover,
    "random, live (paper)": blover,
    "online, profiles 10 % wrong": online,
    "exact": planned,
}


def wrong(application: str) -> Factor:
    """Return how wrong the profiles are, by variant and slice kind, the same in every call."""
    found: dict[tuple[str, str], tuple[float, float]] = {}

    def factor(variant: str, slice_kind: str) -> tuple[float, float]:
        draw = random.Random(f"{application} {variant} {slice_kind}")
        time, energy = (math.exp(draw.gauss(0.0, ERROR)) for _ in range(2))
        return found.setdefault((variant, slice_kind), (time, energy))

    return factor


def _paper(setting: Setting, walk: Callable[[Problem, Schedule], Iterator[Candidate]]) -> Searched:
    setting = replace(setting, blind=True)
    new_id, running = fleets.ids(), tuple[Segment, ...]()
    gpus, evaluations, gaps = setting.fleet(1.0), list[Evaluation](), list[float]()
    for hour, intensity in _triggers(setting):
        gpus, running = fleets.rolled_out(gpus, running, {ZONE: intensity})
        problem = setting.problem(gpus, running, seed=hour)
        first, *met = walk(problem, PAPER)
        late = [_late(_drawn(problem, each.configuration), problem) for each in met]
        evaluations += [Evaluation(hour, broken) for broken in late]
        kept = [each for each, broken in zip(met, late, strict=True) if not broken]
        best = max([first, *kept], key=lambda each: each.score.worth)
        top = score(problem, exact(_feasible(problem)))
        gaps.append(top.objective - best.score.objective)
        running = place(problem, best.configuration, new_id)
    return Searched(tuple(evaluations), tuple(gaps))


def _drawn(problem: Problem, configuration: Configuration) -> Score:
    """Judge a configuration whose instances draw load by their speed, as the paper's do."""
    rates = {kind: n * kind.throughput_rps for kind, n in configuration.segments.items()}
    share = sum(model.demand_rps for model in problem.models) / max(sum(rates.values()), 1e-9)
    load_rps = {kind: rate * share for kind, rate in rates.items()}
    return score(problem, replace(configuration, load_rps=load_rps))


def _triggers(setting: Setting) -> Iterator[tuple[int, float]]:
    last = math.inf
    for hour, intensity in enumerate(intensities(setting.trace)):
        if abs(intensity - last) > CHANGE * last or hour == 0:
            last = intensity
            yield hour, intensity


def _propose(problem: Problem) -> Iterator[Mapping[SegmentKind, int]]:
    met = (each.configuration.segments for each in search(problem, SHORT))
    return chain([exact(problem).segments], met)


def _serving(problem: Problem) -> Configuration:
    """Return what runs, with the load that its shares give it."""
    (model,) = problem.models
    segments: dict[SegmentKind, int] = {}
    load_rps: dict[SegmentKind, float] = {}
    for each in problem.running:
        segments[each.kind] = segments.get(each.kind, 0) + 1
        load_rps[each.kind] = load_rps.get(each.kind, 0.0) + each.share * model.demand_rps
    return Configuration(segments, load_rps)


def _profiled(problem: Problem, placed: tuple[Segment, ...]) -> tuple[Segment, ...]:
    """Return segments with the figures of the profiles, which beliefs then correct."""
    kinds = {_name(kind): kind for kind in problem.catalog}
    return tuple(replace(each, kind=kinds.get(_name(each.kind), each.kind)) for each in placed)


def _name(kind: SegmentKind) -> tuple[str, str, int, int]:
    return kind.variant, kind.profile, kind.batch_size, kind.processes


def _feasible(problem: Problem) -> Problem:
    (model,) = problem.models
    kept = (kind for kind in problem.catalog if in_time(problem.objective, model, kind))
    return replace(problem, catalog=tuple(kept))


def _late(judged: Score, problem: Problem) -> bool:
    (model,) = problem.models
    return judged.latency_s[model.name] > model.slo_latency_s
