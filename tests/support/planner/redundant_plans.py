"""Random problems with promises of redundancy, and a program of their own that finds plans.

The program shares no code with the planner's: every GPU has its layout and its segments, and SciPy
hands it to HiGHS as a whole.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp

from services.kit.config import Objective
from services.kit.mig import maximal_layouts
from services.kit.profiles.core.language import LanguageProfile
from services.planner.core.model import Gpu, Model, Pool, Problem, SegmentKind, Variant
from services.planner.core.placement.node_groups import UNCUT
from services.planner.core.problem.latency_rule import admissible_rps
from services.simulator.device import gpu_type
from tests.support.planner import fleets

Terms = dict[int, float]


class _Program:
    """Columns and rows of a mixed-integer program without a goal."""

    def __init__(self) -> None:
        self._upper: list[float] = []
        self._integer: list[int] = []
        self._rows: list[tuple[Terms, float, float]] = []

    def column(self, upper: float, *, integer: bool = True) -> int:
        """Add a variable in 0..`upper`."""
        self._upper.append(upper)
        self._integer.append(int(integer))
        return len(self._upper) - 1

    def row(self, terms: Terms, low: float = -np.inf, high: float = np.inf) -> None:
        """Add `low` <= sum of terms <= `high`."""
        self._rows.append((terms, low, high))

    def feasible(self, time_limit_s: float) -> bool | None:
        """Return whether all rows can be kept; None: unknown."""
        matrix = np.zeros((len(self._rows), len(self._upper)))
        for at, (terms, _, _) in enumerate(self._rows):
            for column, by in terms.items():
                matrix[at, column] += by
        found = milp(
            np.zeros(len(self._upper)),
            integrality=np.array(self._integer),
            bounds=Bounds(0.0, np.array(self._upper)),
            constraints=LinearConstraint(
                matrix, [low for _, low, _ in self._rows], [high for *_, high in self._rows]
            ),
            options={"time_limit": time_limit_s, "mip_rel_gap": 1.0},
        )
        return True if found.x is not None else False if found.status == 2 else None


def plan_exists(problem: Problem, time_limit_s: float = 20.0) -> bool | None:
    """Return whether a plan serves all load, keeps the floor and every promise; None: unknown."""
    program, kinds = _Program(), _best(problem)
    on: dict[tuple[str, SegmentKind], int] = {}
    for gpu in problem.gpus:
        layouts = {
            program.column(1): Counter(place.profile for place in layout)
            for layout in maximal_layouts(gpu.pool.type.geometry)
        }
        program.row(dict.fromkeys(layouts, 1.0), high=1.0)
        mine = [kind for kind in kinds if kind.pool == gpu.pool]
        on |= {(gpu.uuid, kind): program.column(7) for kind in mine}
        for profile in {kind.profile for kind in mine}:
            held = {on[gpu.uuid, kind]: 1.0 for kind in mine if kind.profile == profile}
            program.row(held | {at: -float(n[profile]) for at, n in layouts.items()}, high=0.0)
    for model in problem.models:
        own = [kind for kind in kinds if kind.model == model.name]
        _serve(program, problem, model, own, on)
        _survive(program, problem, model, own, on)
    return program.feasible(time_limit_s)


def _best(problem: Problem) -> list[SegmentKind]:
    """Return the kinds with most load on each place, before and after a loss."""
    found: dict[SegmentKind, None] = {}
    for model in problem.models:
        places: dict[object, list[SegmentKind]] = {}
        for kind in problem.catalog:
            if kind.model == model.name:
                places.setdefault((kind.variant, kind.pool, kind.profile), []).append(kind)
        for group in places.values():
            for least in (model, _after(model)):
                best = max(group, key=lambda k: admissible_rps(problem.objective, least, k))
                found[best] = None
    return list(found)


def _after(model: Model) -> Model:
    """Return a model with the load that must survive."""
    return replace(model, demand_rps=(model.survive or 1.0) * model.demand_rps)


def _serve(
    program: _Program,
    problem: Problem,
    model: Model,
    own: list[SegmentKind],
    on: dict[tuple[str, SegmentKind], int],
) -> None:
    loads = {kind: program.column(1, integer=False) for kind in own}
    for kind, load in loads.items():
        share = admissible_rps(problem.objective, model, kind) / model.demand_rps
        segments = {at: -share for (_, each), at in on.items() if each == kind}
        program.row({load: 1.0} | segments, high=0.0)
    program.row(dict.fromkeys(loads.values(), 1.0), low=1.0)
    floor = problem.objective.accuracy_floor * model.best.accuracy
    program.row({load: kind.accuracy - floor for kind, load in loads.items()}, low=0.0)


def _survive(
    program: _Program,
    problem: Problem,
    model: Model,
    own: list[SegmentKind],
    on: dict[tuple[str, SegmentKind], int],
) -> None:
    after, used = _after(model), []
    domains = {gpu.node if model.spread == "node" else gpu.uuid for gpu in problem.gpus}
    where = {gpu.uuid: gpu.node if model.spread == "node" else gpu.uuid for gpu in problem.gpus}
    mine = {(where[uuid], kind, at) for (uuid, kind), at in on.items() if kind in own}
    program.row({at: 1.0 for *_, at in mine}, low=model.replicas_min)
    for domain in domains:
        if model.survive:
            left = {
                at: min(1.0, admissible_rps(problem.objective, after, kind) / after.demand_rps)
                for there, kind, at in mine
                if there != domain
            }
            program.row(left, low=1.0)
        used.append(program.column(1))
        there = {at: 1.0 for place, _, at in mine if place == domain}
        program.row(there | {used[-1]: -1.0}, low=0.0)
    if model.spread:
        wanted = min(model.replicas_min, len(domains))
        program.row(dict.fromkeys(used, 1.0), low=wanted)


def random_problem(seed: int, *, most_gpus: int = 6) -> Problem:
    """Return a problem of a few GPUs and models, most of which must survive a loss."""
    draw = random.Random(seed)
    gpus, per_node = draw.randint(2, most_gpus), draw.choice((1, 2))
    pools = [fleets.pool(draw.choice(("a100-40gb", "h100-80gb")))]
    if draw.random() < 0.3:
        pools.append(fleets.pool("a30", zone="GB"))
    fleet = tuple(
        Gpu(f"GPU-{at}", f"node-{at // per_node}", draw.choice(pools)) for at in range(gpus)
    )
    number = draw.randint(1, 3)
    models = [
        replace(
            fleets.model(
                f"m{at}",
                gmacs=[draw.uniform(0.3, 2.0), draw.uniform(2.0, 40.0)],
                accuracies=[draw.uniform(70.0, 80.0), draw.uniform(80.0, 90.0)],
                demand_rps=gpus / number * 10 ** draw.uniform(0.5, 4.0),
                slo_s=draw.choice((0.1, 0.2, 0.4)),
            ),
            survive=draw.choice((0.0, 0.5, 0.8, 1.0, 1.0)),
            spread=draw.choice((None, "gpu", "node")),
            replicas_min=draw.choice((1, 1, 2, 3)),
        )
        for at in range(number)
    ]
    objective = Objective(
        carbon_weight=draw.choice((0.1, 0.5, 0.9)),
        accuracy_floor=draw.choice((0.0, 0.0, 0.9)),
        park_idle_gpus=draw.random() < 0.5,
    )
    return fleets.problem(fleet, models, objective, max_processes=2, time_limit_s=5.0)


def several_gpus_problem(seed: int) -> Problem:
    """Return a problem of nodes with whole GPUs, and models with variants on several of them."""
    draw = random.Random(seed)
    pool = Pool(gpu_type("h100-80gb", whole=True), "Z", 1.2, 300.0)
    fleet = tuple(
        Gpu(f"GPU-{node}-{at}", f"node-{node}", pool, (UNCUT,))
        for node in range(draw.randint(2, 3))
        for at in range(draw.choice((1, 2, 4)))
    )
    models = []
    for at in range(draw.randint(1, 2)):
        sizes = draw.choice(((1, 2), (2,), (1, 2, 4), (1,), (2, 4)))
        profile = LanguageProfile.of(draw.choice((8.0, 14.0, 30.0)), kv_kib_per_token=320)
        variants = tuple(Variant(f"v{n}", 80.0 + n, profile, gpus=n) for n in sizes)
        demand_rps = 10 ** draw.uniform(-1.0, 0.8)
        model = Model(f"m{at}", 60.0, 99.0, demand_rps, variants, slo_first_token_s=2.0)
        models.append(
            replace(
                model,
                survive=draw.choice((0.0, 0.5, 1.0, 1.0)),
                spread=draw.choice((None, "gpu", "node")),
                replicas_min=draw.choice((1, 2, 2, 3)),
            )
        )
    return fleets.problem(fleet, models, batch_sizes=(8, 32), max_processes=1, time_limit_s=2.0)


def several_gpus_plan_exists(problem: Problem, time_limit_s: float = 20.0) -> bool | None:
    """Return whether segments that hold whole GPUs keep every promise; None: unknown."""
    program = _Program()
    on: dict[tuple[str, SegmentKind], int] = {}
    for node, size in Counter(gpu.node for gpu in problem.gpus).items():
        here = {kind: program.column(size // kind.gpus) for kind in _best(problem)}
        program.row({at: float(kind.gpus) for kind, at in here.items()}, high=float(size))
        on |= {(node, kind): at for kind, at in here.items()}
    for model in problem.models:
        after = _after(model)
        mine = {(node, kind): at for (node, kind), at in on.items() if kind.model == model.name}
        kinds = dict.fromkeys(kind for _, kind in mine)
        served = {k: admissible_rps(problem.objective, model, k) / model.demand_rps for k in kinds}
        left = {k: admissible_rps(problem.objective, after, k) / after.demand_rps for k in kinds}
        left = {kind: min(1.0, share) for kind, share in left.items()}
        program.row({at: served[kind] for (_, kind), at in mine.items()}, low=1.0)
        program.row(dict.fromkeys(mine.values(), 1.0), low=model.replicas_min)
        all_left = {at: left[kind] for (_, kind), at in mine.items()}
        if model.spread == "node":
            _survive_nodes(program, model, mine, all_left)
        elif model.survive:  # one segment goes with any of its GPUs
            for gone in kinds:
                used, segments = program.column(1), {at for (_, k), at in mine.items() if k == gone}
                most = -float(len(problem.gpus))
                program.row(dict.fromkeys(segments, 1.0) | {used: most}, high=0.0)
                program.row(all_left | {used: -left[gone]}, low=1.0)
    return program.feasible(time_limit_s)


def _survive_nodes(
    program: _Program, model: Model, mine: dict[tuple[str, SegmentKind], int], left: Terms
) -> None:
    nodes, used = dict.fromkeys(node for node, _ in mine), []
    for lost in nodes:
        there = {at for (node, _), at in mine.items() if node == lost}
        if model.survive:
            program.row({at: share for at, share in left.items() if at not in there}, low=1.0)
        used.append(program.column(1))
        program.row(dict.fromkeys(there, 1.0) | {used[-1]: -1.0}, low=0.0)
    program.row(dict.fromkeys(used, 1.0), low=min(model.replicas_min, len(nodes)))


def ids() -> Iterator[str]:
    """Yield segment ids."""
    return map("s-{}".format, count())
