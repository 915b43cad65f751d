"""Capacity of each model after the loss of any one of its failure domains."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cinquefoil.condition.v1.records import Condition, ConditionKind
from services.planner.core.model import Model, Problem, Segment, SegmentKind
from services.planner.core.problem.failure_domains import (
    demanding,
    domain_of,
    domains_of,
    domains_wanted,
    surviving_rps,
)
from services.planner.core.problem.latency_rule import keeps_percentile
from services.planner.core.problem.queueing import latency_s
from services.planner.core.problem.serving_paths import serving_paths
from services.planner.core.problem.stations import Station

_TOLERANCE: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Redundancy:
    """A model's capacity after the worst loss.

    Attributes:
        left_rps: Load that is then still served in time, req/s.
        needed_rps: Load that must then be served in time, req/s.
        lost: The GPU or node whose loss is the worst; "": nothing serves the model.
        segments: Number of segments that serve the model.
        segments_min: Number of segments that it must have.
        domains: Number of GPUs or nodes that they are on.
        domains_min: Number of GPUs or nodes that they must be on.
    """

    left_rps: float
    needed_rps: float
    lost: str
    segments: int
    segments_min: int
    domains: int
    domains_min: int

    @property
    def missing_rps(self) -> float:
        """Load that the worst loss leaves unserved although it must be served, req/s."""
        missing_rps = self.needed_rps - self.left_rps
        return missing_rps if missing_rps > _TOLERANCE * self.needed_rps else 0.0

    @property
    def missing(self) -> float:
        """Shares of the promises that are not kept, summed up; 0: all are."""
        short = max(0, self.segments_min - self.segments) / self.segments_min
        apart = max(0, self.domains_min - self.domains) / max(1, self.domains_min)
        return short + apart + (self.missing_rps / self.needed_rps if self.needed_rps else 0.0)


def redundancy(problem: Problem, model: Model, segments: Iterable[Segment]) -> Redundancy:
    """Return a model's capacity after the loss of any one GPU, or node (`Model.spread`)."""
    own = [each for each in segments if each.kind.model == model.name]
    counts = Counter(each.kind for each in own)
    lost: dict[str, Counter[SegmentKind]] = {}
    for each in own:
        lost.setdefault(domain_of(model, each.gpu_uuid, each.node), Counter())[each.kind] += 1
    known: dict[frozenset[tuple[SegmentKind, int]], float] = {}
    left: dict[str, float] = {}
    for domain, gone in sorted(lost.items()):
        key = frozenset(gone.items())  # most domains hold the same
        if key not in known:
            known[key] = _left_rps(problem, model, counts - gone)
        left[domain] = known[key]
    worst = min(left, key=lambda domain: left[domain], default="")
    return Redundancy(
        left_rps=left.get(worst, 0.0),
        needed_rps=model.survive * model.demand_rps,
        lost=worst,
        segments=sum(not each.kind.stage.index for each in own),
        segments_min=model.replicas_min,
        domains=len(lost),
        domains_min=domains_wanted(model, len(_domains(problem, model))),
    )


def _domains(problem: Problem, model: Model) -> Collection[str]:
    """Return the domains on which the model can be."""
    pools = {kind.pool for kind in problem.catalog if kind.model == model.name}
    return domains_of(model, (gpu for gpu in problem.gpus if gpu.pool in pools))


def _left_rps(problem: Problem, model: Model, counts: Mapping[SegmentKind, int]) -> float:
    """Return the load that segments serve in time, up to what must survive, req/s.

    Where each keeps its admissible load but all together miss the percentile: the closer they come,
    the more.
    """
    capacity = {
        kind: count * rps
        for kind, count in counts.items()
        if (rps := surviving_rps(problem.objective, model, kind)) > 0
    }
    paths = list(serving_paths(capacity))
    left_rps = sum(path.capacity_rps for path in paths)
    needed_rps = model.survive * model.demand_rps
    if left_rps < needed_rps or len(paths) < 2 or not keeps_percentile(problem.objective):
        return left_rps
    stations = tuple(
        Station(kind, counts[kind], needed_rps * rps / left_rps) for kind, rps in capacity.items()
    )
    if any(kind.stage.of > 1 for kind in capacity):
        return left_rps
    late_s = latency_s(stations, model.slo_percentile)
    return left_rps if late_s <= model.slo_latency_s else needed_rps * model.slo_latency_s / late_s


def missing(problem: Problem, segments: Sequence[Segment]) -> float:
    """Return the shares of all models' promises that are not kept, summed up; 0: all are."""
    return sum(
        redundancy(problem, model, segments).missing for model in problem.models if demanding(model)
    )


def missing_redundancy(problem: Problem, segments: Sequence[Segment]) -> Iterator[Condition]:
    """Yield the models that would not survive a loss as required, or have too few segments."""
    for model in problem.models:
        if not demanding(model):
            continue
        found = redundancy(problem, model, segments)
        if found.missing_rps:
            yield Condition(
                ConditionKind.REDUNDANCY_MISSING,
                f"model/{model.name}",
                f"{model.name}: the loss of one {model.spread or 'gpu'} leaves "
                f"{found.left_rps:.1f} of {found.needed_rps:.1f} req/s that must survive: there is "
                "no room for a spare segment elsewhere",
                f"models.{model.name}.survive",
            )
        elif found.missing:
            where = f" on {found.domains} {model.spread}(s)" if model.spread else ""
            yield Condition(
                ConditionKind.REDUNDANCY_MISSING,
                f"model/{model.name}",
                f"{model.name}: {found.segments} segment(s){where} serve it, of at least "
                f"{model.replicas_min}: there is no room for more",
                f"models.{model.name}.replicas_min",
            )
