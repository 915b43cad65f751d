"""Plans of models on several GPUs of one node: placed, moved and stopped as one."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import Objective
from services.kit.mig import GPUS_TOGETHER, WHOLE
from services.kit.profiles.core.language import LanguageProfile
from services.planner.core.feasibility import lacks, left_of, resumed
from services.planner.core.known_nodes import GpuPower, together
from services.planner.core.model import Gpu, Model, Pool, Problem, Segment, SegmentKind, Variant
from services.planner.core.placement.actions import StartSegment, StopSegment
from services.planner.core.placement.node_groups import UNCUT
from services.planner.core.placement.placement import clocks, place
from services.planner.core.placement.rollout import plan_rollout
from services.planner.core.plan import planned
from services.planner.core.problem.packing import gpus_needed, nested
from services.planner.core.problem.score import score
from services.planner.core.spares import reinforced
from services.planner.core.strategies import COMPLETE, REGISTRY
from services.planner.core.strategies.exact import exact
from services.simulator.device import gpu_type
from tests.support.examples import examples
from tests.support.planner import fleets
from tests.support.planner.plans import plan as stored_plan

H100 = Pool(gpu_type("h100-80gb", whole=True), "Z", 1.2, 300.0)
CUT = Pool(gpu_type("h100-80gb"), "Z", 1.2, 300.0)


def nodes(*sizes: int, pool: Pool = H100) -> tuple[Gpu, ...]:
    """Nodes of so many GPUs each; those that are not cut have their only slice."""
    slices = (UNCUT,) if pool is H100 else ()
    return tuple(
        Gpu(f"GPU-{node}-{at}", f"node-{node}", pool, slices)
        for node, size in enumerate(sizes)
        for at in range(size)
    )


def chat(*gpus: int, demand_rps: float = 1.0, parameters_b: float = 70.0, **of: object) -> Model:
    """A model of variants on so many GPUs each."""
    variants = tuple(
        Variant(f"v{n}", 80.0 + n, LanguageProfile.of(parameters_b, kv_kib_per_token=320), gpus=n)
        for n in gpus
    )
    chosen = Model("chat", 60.0, 99.0, demand_rps, variants, slo_first_token_s=2.0)
    return replace(chosen, **of)  # type: ignore[arg-type]


def problem(gpus: Sequence[Gpu], *models: Model, **of: object) -> Problem:
    return fleets.problem(gpus, models, batch_sizes=(8, 32), max_processes=1, **of)  # type: ignore[arg-type]


def placed(posed: Problem, prefix: str = "s") -> tuple[Segment, ...]:
    numbers = count()
    return place(posed, exact(posed), lambda: f"{prefix}{next(numbers)}")


def test_a_70b_model_is_served_by_four_gpus_as_one() -> None:
    """It fits on no GPU alone; its segment holds four, at one clock, and draws the power of all."""
    posed = problem(nodes(4), chat(4), clock_ratios=(0.7, 1.0))

    found = exact(posed)
    (segment,) = placed(posed)

    judged = score(posed, found)
    assert found.gap == 0
    assert judged.unserved_rps["chat"] == pytest.approx(0, abs=1e-6)
    assert judged.gpus_in_use == 4
    assert len({*segment.gpu_uuids}) == 4
    assert segment.spec.peer_gpu_uuids == segment.peers
    assert clocks([segment]) == dict.fromkeys(segment.gpu_uuids, segment.kind.clock_mhz)
    one = LanguageProfile.of(70.0).batch(H100.type.shape(H100.type.geometry.kinds[0]), 8, 1)
    assert one is None, "140 GB of weights are on no GPU of 80 GB"


@pytest.mark.parametrize(
    ("gpus", "why"),
    [
        (nodes(2, 2), "no node has four"),
        (nodes(8, pool=CUT), "MIG slices cannot be joined"),
        (nodes(4)[:3], "one of the node's GPUs is away"),
    ],
)
def test_a_model_that_no_node_holds_is_unserved_and_takes_nothing_from_others(
    gpus: tuple[Gpu, ...], why: str
) -> None:
    """Another model is served in full."""
    small = replace(chat(1, parameters_b=8.0), name="small")

    judged = score(posed := problem(gpus, chat(4), small), exact(posed))

    assert judged.unserved_rps == pytest.approx({"chat": 1.0, "small": 0.0}, abs=1e-6), why


def _packs(sizes: Sequence[int], groups: Sequence[int]) -> bool:
    """Return whether nodes hold groups, among all assignments."""
    return any(
        all(
            sum(g for g, at in zip(groups, where, strict=True) if at == node) <= size
            for node, size in enumerate(sizes)
        )
        for where in product(range(len(sizes)), repeat=len(groups))
    )


@examples(0.3)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.lists(st.sampled_from(GPUS_TOGETHER[:4]), max_size=5),
)
def test_the_rule_of_the_program_is_that_nodes_hold_the_segments(
    sizes: list[int], groups: list[int]
) -> None:
    """Counts per size decide it, and what they allow is placed, each segment on one node."""
    posed = problem(nodes(*sizes), chat(*sorted({*groups, 1}), parameters_b=1.0))
    kinds = {kind.gpus: kind for kind in posed.catalog}
    segments = Counter(kinds[size] for size in groups)

    needed = gpus_needed(posed, segments)

    assert (needed is not None) == _packs(sizes, groups)
    together = Counter((H100, size) for size in groups if size > 1)
    assert all(n <= len(groups) * 8 for n in nested(together).values())
    if needed is None:
        return
    numbers = count()
    configuration = replace(exact(posed), segments=segments, load_rps={})
    found = place(posed, configuration, lambda: f"s{next(numbers)}")
    held = [uuid for each in found for uuid in each.gpu_uuids]
    by_uuid = {gpu.uuid: gpu for gpu in posed.gpus}
    assert len(held) == len({*held}) == sum(groups)
    assert all(len({by_uuid[u].node for u in each.gpu_uuids}) == 1 for each in found)


def test_a_running_segment_stays_on_its_gpus_and_leaves_them_only_for_room() -> None:
    """Two of two GPUs on two nodes keep their place, until a third needs a node of four whole."""
    gpus = nodes(4, 4)
    (kind,) = _fastest(problem(gpus, chat(2, parameters_b=8.0)), 2)
    running = tuple(
        Segment(f"old{n}", kind, f"node-{n}", f"GPU-{n}-1", UNCUT, 0.5, (f"GPU-{n}-3",))
        for n in range(2)
    )
    kept = problem(gpus, chat(2, 4, parameters_b=8.0), running=running)
    (large,) = _fastest(kept, 4)

    stay = place(kept, replace(exact(kept), segments={kind: 2}, load_rps={}), lambda: "new")
    move = place(kept, replace(exact(kept), segments={kind: 2, large: 1}, load_rps={}), _named())

    assert {(each.segment_id, each.gpu_uuids) for each in stay} == {
        (each.segment_id, each.gpu_uuids) for each in running
    }
    assert sum(each in {*running_ids(running)} for each in (s.segment_id for s in move)) == 1
    assert {len(each.gpu_uuids) for each in move} == {2, 4}


def running_ids(segments: Sequence[Segment]) -> Iterator[str]:
    return (each.segment_id for each in segments)


def _named() -> Callable[[], str]:
    numbers = count()
    return lambda: f"new{next(numbers)}"


def _fastest(posed: Problem, gpus: int) -> tuple[SegmentKind]:
    kinds = (kind for kind in posed.catalog if kind.gpus == gpus)
    return (max(kinds, key=lambda kind: kind.throughput_rps),)


def test_a_change_of_variant_on_the_same_gpus_stops_and_starts_each_segment_once() -> None:
    """The old one ends before the new one begins: both do not fit."""
    gpus, models = nodes(4), [chat(4, demand_rps=0.1, parameters_b=100.0)]
    before = placed(problem(gpus, models[0]))
    other = replace(before[0].kind, batch_size=before[0].kind.batch_size // 2)
    after = (replace(before[0], segment_id="new", kind=other),)

    rollout = plan_rollout(gpus, before, after, models)

    steps = [action for stage in rollout.stages for group in stage.actions for action in group]
    assert steps == [StopSegment("s0", before[0].gpu_uuid), StartSegment(after[0])]


def test_a_segment_of_several_gpus_replaces_those_of_one_each() -> None:
    """All that run on its GPUs stop before it starts; a segment beside it is left alone."""
    gpus = nodes(4)
    small = problem(gpus, chat(1, 2, parameters_b=8.0))
    (one,), (two,) = _fastest(small, 1), _fastest(small, 2)
    singles = tuple(Segment(f"s{n}", one, "node-0", f"GPU-0-{n}", UNCUT, 1 / 3) for n in range(3))
    pair = Segment("pair", two, "node-0", "GPU-0-1", UNCUT, 0.5, ("GPU-0-2",))

    rollout = plan_rollout(gpus, singles, (singles[0], pair), small.models)

    actions = [a for stage in rollout.stages for group in stage.actions for a in group]
    assert actions == [
        StopSegment("s1", "GPU-0-1"),
        StopSegment("s2", "GPU-0-2"),
        StartSegment(pair),
    ]


def test_the_loss_of_one_gpu_is_the_loss_of_the_segment() -> None:
    """An earlier plan cannot run again, and nothing of it is left for the segment."""
    gpus, model = nodes(4), chat(4)
    (segment,) = placed(problem(gpus, model))
    plan = [planned(segment)]

    assert lacks(plan, gpus, [model]) == ()
    assert left_of(plan, gpus, [model]) == tuple(plan)
    for lost in range(4):
        there = [gpu for gpu in gpus if gpu.uuid != f"GPU-0-{lost}"]
        assert lacks(plan, there, [model]) == (f"GPU GPU-0-{lost} of node-0 is away",)
        assert left_of(plan, there, [model]) == ()


@pytest.mark.parametrize("sizes", [(4, 6), (8, 8)])
def test_a_spare_takes_as_many_gpus_of_another_node(sizes: tuple[int, ...]) -> None:
    """A model that must survive the loss of a node has a second segment there."""
    model = chat(4, demand_rps=0.5, survive=1.0, spread="node")
    posed = problem(nodes(*sizes), model)
    found = exact(posed)

    _, segments = reinforced(posed, found, placed(posed), lambda: "spare", free=True)

    assert {each.node for each in segments} == {"node-0", "node-1"}
    assert all(len({*each.gpu_uuids}) == 4 for each in segments)


@pytest.mark.parametrize("name", sorted(REGISTRY.keys() - COMPLETE))
def test_strategies_of_single_slices_leave_such_variants_out(name: str) -> None:
    """They serve the variant on one GPU, and never four segments' worth of one GPU."""
    posed = problem(nodes(4), chat(1, 4, parameters_b=8.0), time_limit_s=2.0)

    found = REGISTRY[name](posed)

    assert {kind.gpus for kind in found.segments} == {1}


def test_a_mixed_fleet_is_filled_to_the_last_gpu() -> None:
    """Exact: one segment of four, one of two and two of one on a node of eight."""
    objective = Objective(park_idle_gpus=True)
    small = replace(chat(1, parameters_b=8.0, demand_rps=0.2), name="small")
    middle = replace(chat(2, parameters_b=32.0, demand_rps=0.2), name="middle")
    posed = problem(nodes(8), chat(4, demand_rps=0.2), middle, small, objective=objective)

    found = exact(posed)

    assert score(posed, found).unserved_rps == pytest.approx(
        {"chat": 0.0, "middle": 0.0, "small": 0.0}, abs=1e-6
    )
    assert sorted(kind.gpus for kind in found.segments) == [1, 2, 4]
    assert score(posed, found).gpus_in_use == 7
    assert {kind.profile for kind in found.segments} == {WHOLE}


def test_a_plan_resumes_with_all_its_gpus() -> None:
    """Restored from the store, a segment has its peers and the figures of all its GPUs."""
    gpus, model = nodes(4), chat(4)
    posed = problem(gpus, model)
    (segment,) = placed(posed)

    plan = stored_plan(1, [planned(segment)])

    (again,) = resumed(plan, gpus, [model])

    assert again.gpu_uuids == segment.gpu_uuids
    assert again.kind.throughput_rps == pytest.approx(segment.kind.throughput_rps)
    assert again.kind.gpus == 4


def test_the_power_of_a_segment_is_that_of_all_its_gpus() -> None:
    """Routers bound receipts by it; where one limit is not known, none is."""
    assert together([GpuPower(70.0, 700.0)] * 4) == GpuPower(280.0, 2800.0)
    assert together([GpuPower(70.0, 700.0), GpuPower()]) == GpuPower(70.0, 0.0)
