"""Spare segments: capacity beyond a model's load, to survive a loss.

Strategies decide on the number of segments of each kind; the effect of a loss depends on their
places. Spares are therefore added once places are known, where the strategy's segments leave room.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from cinquefoil.condition.v1.records import Condition, ConditionKind
from cinquefoil.gpuagent.v1.records import Placement
from services.kit.grouping import grouped
from services.planner.core.model import Configuration, Gpu, Model, Problem, Segment, SegmentKind
from services.planner.core.placement.placement import shares_of
from services.planner.core.problem.catalog import in_time
from services.planner.core.problem.load_split import with_load
from services.planner.core.problem.pricing import gpcs, prices, row
from services.planner.core.problem.serving_paths import serving_paths

_TOLERANCE: Final = 1e-6
_MOST_GPUS: Final = 256
"""Largest number of GPUs with room that are compared for one spare."""


@dataclass(frozen=True, slots=True)
class Redundancy:
    """A model's capacity after the worst loss.

    Attributes:
        left_rps: Load that is then still served in time, req/s.
        needed_rps: Load that must then be served in time, req/s.
        lost: The GPU or node whose loss is the worst; "": nothing serves the model.
        segments: Number of segments that serve the model.
        domains: GPUs or nodes that they are on.
    """

    left_rps: float
    needed_rps: float
    lost: str
    segments: int
    domains: frozenset[str]

    @property
    def missing_rps(self) -> float:
        """Load that the worst loss leaves unserved although it must be served, req/s."""
        missing_rps = self.needed_rps - self.left_rps
        return missing_rps if missing_rps > _TOLERANCE * self.needed_rps else 0.0


def redundancy(problem: Problem, model: Model, segments: Iterable[Segment]) -> Redundancy:
    """Return a model's capacity after the loss of any one GPU, or node (`Model.spread`)."""
    own = [each for each in segments if each.kind.model == model.name]
    domains = frozenset(_domain(model, each.gpu_uuid, each.node) for each in own)
    left = {
        domain: servable_rps(
            problem,
            model,
            (each for each in own if _domain(model, each.gpu_uuid, each.node) != domain),
        )
        for domain in sorted(domains)
    }
    lost = min(left, key=lambda domain: left[domain], default="")
    first = sum(not each.kind.stage.index for each in own)
    return Redundancy(left.get(lost, 0.0), model.survive * model.demand_rps, lost, first, domains)


def servable_rps(problem: Problem, model: Model, segments: Iterable[Segment]) -> float:
    """Return a model's load that segments serve in time, req/s."""
    counts = Counter(each.kind for each in segments)
    usable = problem.objective.max_utilisation
    paths = serving_paths(
        {
            kind: usable * kind.throughput_rps * count
            for kind, count in counts.items()
            if in_time(problem.objective, model, kind)
        }
    )
    return sum(path.capacity_rps for path in paths)


def missing_redundancy(problem: Problem, segments: Sequence[Segment]) -> Iterator[Condition]:
    """Yield the models that would not survive a loss as required, or have too few segments."""
    for model in problem.models:
        if not _demanding(model):
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
        elif _avoid(problem, model, found) is not None:
            where = f" on {len(found.domains)} {model.spread}(s)" if model.spread else ""
            yield Condition(
                ConditionKind.REDUNDANCY_MISSING,
                f"model/{model.name}",
                f"{model.name}: {found.segments} segment(s){where} serve it, of at least "
                f"{model.replicas_min}: there is no room for more",
                f"models.{model.name}.replicas_min",
            )


def reinforced(
    problem: Problem,
    configuration: Configuration,
    target: tuple[Segment, ...],
    new_id: Callable[[], str],
) -> tuple[Configuration, tuple[Segment, ...]]:
    """Return a configuration and its segments with spares, as far as there is room for them.

    Spares run variants that serve their model already, and take part in its load. Running ones
    stay. No gap is proven for a configuration with spares.

    Args:
        problem: The problem.
        configuration: The chosen configuration.
        target: Its segments at their places; none of them is moved.
        new_id: Returns an unused segment id.
    """
    room = _Room(problem, target, new_id)
    grown = {model.name for model in problem.models if _demanding(model) and room.reinforce(model)}
    if not grown:
        return configuration, target
    counts = Counter(each.kind for each in room.segments)
    split = with_load(prices(problem), counts)
    load_rps = {
        kind: (split if kind.model in grown else configuration).load_rps.get(kind, 0.0)
        for kind in counts
    }
    configuration = Configuration(counts, load_rps)
    shares, order = shares_of(configuration), {gpu.uuid: n for n, gpu in enumerate(problem.gpus)}
    segments = sorted(room.segments, key=lambda each: (order[each.gpu_uuid], each.placement.start))
    return configuration, tuple(replace(each, share=shares[each.kind]) for each in segments)


class _Room:
    """Segments at their places, and the room beside them."""

    def __init__(
        self, problem: Problem, target: Iterable[Segment], new_id: Callable[[], str]
    ) -> None:
        self.segments = list(target)
        self._problem = problem
        self._new_id = new_id
        self._taken = grouped((uuid, each) for each in self.segments for uuid in each.gpu_uuids)
        self._running = {
            (each.gpu_uuid, each.placement, row(each.kind)): each.segment_id
            for each in problem.running
        }

    def reinforce(self, model: Model) -> bool:
        """Add the spares that a model needs, as far as they fit; return whether there are any."""
        before = len(self.segments)
        while True:
            found = redundancy(self._problem, model, self.segments)
            avoid = _avoid(self._problem, model, found)
            spare = None if avoid is None else self._best(model, avoid, found.missing_rps)
            if spare is None:
                return len(self.segments) > before
            self.segments.append(spare)
            for uuid in spare.gpu_uuids:
                self._taken.setdefault(uuid, []).append(spare)

    def _best(self, model: Model, avoid: frozenset[str], missing_rps: float) -> Segment | None:
        """Return the smallest spare that covers the missing load; None: there is no room."""
        kinds = self._kinds(model)
        running = {uuid for uuid, _, known in self._running if known[0] == model.name}
        gpus = sorted(
            (gpu for gpu in self._problem.gpus if _domain(model, gpu.uuid, gpu.node) not in avoid),
            key=lambda gpu: gpu.uuid not in running,
        )
        fitting = (found for gpu in gpus if (found := list(self._fitting(gpu, kinds))))
        spares = [each for found in islice(fitting, _MOST_GPUS) for each in found]
        usable = self._problem.objective.max_utilisation

        def effort(each: Segment) -> tuple[float, ...]:
            rps = usable * each.kind.throughput_rps
            known = (each.gpu_uuid, each.placement, row(each.kind)) in self._running
            return (
                -min(rps, missing_rps),
                not known,
                gpcs(each.kind),
                len(self._taken.get(each.gpu_uuid, ())),
                -rps,
            )

        best = min(spares, key=effort, default=None)
        if best is None:
            return None
        known_id = self._running.get((best.gpu_uuid, best.placement, row(best.kind)))
        return replace(best, segment_id=known_id or self._new_id())

    def _kinds(self, model: Model) -> list[SegmentKind]:
        """Return the possible kinds of a spare: of variants that serve, and in one piece."""
        own = {each.kind.variant for each in self.segments if each.kind.model == model.name}
        return [
            kind
            for kind in self._problem.catalog
            if kind.model == model.name
            and kind.stage.of == 1
            and (kind.variant in own or not own)
            and in_time(self._problem.objective, model, kind)
        ]

    def _fitting(self, gpu: Gpu, kinds: Iterable[SegmentKind]) -> Iterator[Segment]:
        """Yield the kinds that fit on a GPU beside its segments, with their clock."""
        taken = self._taken.get(gpu.uuid, [])
        clocks = {each.kind.clock_mhz for each in taken}
        layout, geometry = [each.placement for each in taken], gpu.pool.type.geometry
        free: dict[str, Placement | None] = {}
        for kind in kinds:
            if kind.pool != gpu.pool or not clocks <= {kind.clock_mhz}:
                continue
            if kind.profile not in free:
                places = [
                    Placement(kind.profile, start) for start in geometry.kind(kind.profile).starts
                ]
                fitting = [place for place in places if not geometry.problem((*layout, place))]
                fitting.sort(key=lambda place: place not in gpu.slices)
                free[kind.profile] = next(iter(fitting), None)
            place, peers = free[kind.profile], self._peers(gpu, kind)
            if place is not None and len(peers) == kind.gpus - 1:
                yield Segment("", kind, gpu.node, gpu.uuid, place, 0.0, peers)

    def _peers(self, first: Gpu, kind: SegmentKind) -> tuple[str, ...]:
        """Return free GPUs of a node beside the first for a segment; fewer: there are no more."""
        if kind.gpus == 1 or first.uuid in self._taken:
            return ()
        free = (
            gpu.uuid
            for gpu in self._problem.gpus
            if gpu.node == first.node
            and gpu.pool == first.pool
            and gpu.uuid != first.uuid
            and gpu.uuid not in self._taken
        )
        return tuple(islice(free, kind.gpus - 1))


def _demanding(model: Model) -> bool:
    return model.survive > 0 or model.replicas_min > 1


def _avoid(problem: Problem, model: Model, found: Redundancy) -> frozenset[str] | None:
    """Return the domains that the next spare must avoid; None: none is needed."""
    if found.missing_rps:
        return frozenset({found.lost})
    there_are = {_domain(model, gpu.uuid, gpu.node) for gpu in problem.gpus}
    if model.spread and len(found.domains) < min(model.replicas_min, len(there_are)):
        return found.domains
    return frozenset() if found.segments < model.replicas_min else None


def _domain(model: Model, gpu_uuid: str, node: str) -> str:
    """Return the domain that fails together with a segment."""
    return node if model.spread == "node" else gpu_uuid
