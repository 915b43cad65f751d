"""The segment kinds from which a strategy may choose."""

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import Objective
from services.kit.profiles.core.language import LanguageProfile
from services.kit.profiles.core.profile import BatchCost, SliceShape
from services.planner.core.model import Model, SegmentKind, Variant
from services.planner.core.problem import catalog
from services.planner.core.problem.catalog import Place, Point
from services.planner.core.problem.latency_rule import admissible_rps
from services.planner.core.problem.shortfall import unservable
from tests.support.examples import examples
from tests.support.planner import fleets

A100, T4 = fleets.pool(), fleets.pool("t4", zone="GB")
H100 = fleets.pool("h100-80gb")
TEXT = Model(
    "chat",
    slo_latency_s=60.0,
    slo_percentile=95.0,
    demand_rps=1.0,
    variants=(Variant("8b", 1.0, LanguageProfile.of(8.0)),),
)
"""Of eight billion parameters: 512 tokens in, 256 out."""


def test_every_kind_keeps_the_latency_rule_and_no_faster_slice_is_missing() -> None:
    """A batch takes at most theta x SLO; the largest variant needs the large slices."""
    model = fleets.model(slo_s=0.1)
    kinds = catalog.build([model], [A100], Objective(latency_share=0.5), (1, 4, 16), 3)
    assert kinds
    assert all(kind.latency_s <= 0.05 for kind in kinds)
    largest = {kind.profile for kind in kinds if kind.variant == "v3"}
    smallest = {kind.profile for kind in kinds if kind.variant == "v0"}
    assert largest < smallest == {kind.name for kind in A100.type.geometry.kinds}


def test_every_pool_gets_kinds_of_its_own() -> None:
    """Pools differ in carbon, types in speed; a T4 has one slice, the whole."""
    other = replace(A100, zone="FR")
    kinds = catalog.build([fleets.model()], [A100, other, T4], Objective(), (1, 8), 2)
    assert {kind.pool for kind in kinds} == {A100, other, T4}
    assert {kind.profile for kind in kinds if kind.pool == T4} == {"whole"}


figures = st.floats(0.1, 10.0)
points_of_one_place = st.lists(
    st.builds(
        lambda size, throughput, energy, times: Point(
            size, 1, max(times), throughput, energy, tuple((each,) for each in sorted(times)), None
        ),
        st.sampled_from([1, 2, 8]),
        figures,
        figures,
        st.tuples(figures, figures, figures),
    ),
    max_size=12,
)


@examples(0.4)
@given(points=points_of_one_place)
def test_pareto_keeps_exactly_what_nothing_beats(points: list[Point]) -> None:
    """Each dropped point is beaten by a kept one; no kept one is beaten by another."""

    def beats(one: Point, other: Point) -> bool:
        times = zip(one.times_s, other.times_s, strict=True)
        return (
            (one.batch_size == 1 or other.batch_size > 1)
            and one.throughput_rps >= other.throughput_rps
            and one.energy_j <= other.energy_j
            and all(mine <= its for mine, its in times)
        )

    kept = catalog.pareto(points)
    for point in points:
        assert any(beats(each, point) for each in kept)
    for point in kept:
        assert not any(beats(other, point) for other in kept if other is not point)


@dataclass(frozen=True)
class Launching:
    """A profile whose batches take as long as one request, and as much energy per request."""

    calls: list[int] = field(default_factory=list, compare=False)
    method: Literal["table"] = "table"

    def batch(
        self, shape: SliceShape, batch_size: int, processes: int, *, clock_ratio: float = 1.0
    ) -> BatchCost:
        """Count the call, and return the cost."""
        del shape, clock_ratio
        self.calls.append(batch_size)
        return BatchCost(latency_s=0.01 * processes, energy_j=0.3 * batch_size)


def test_a_kind_without_batches_stays_where_it_may_take_most() -> None:
    """Requests that run one by one wait for the first free process: more load keeps the SLO."""
    served = Model("m", 0.0115, 95.0, 3000.0, (Variant("v", 80.0, Launching()),))
    objective = Objective(latency_share=0.9)
    places = (Place(served, served.best, A100, each) for each in A100.type.geometry.kinds)
    for place in places:
        every = catalog.measure(place, (1, 2, 4, 8), 1)
        best = max(every, key=lambda kind: admissible_rps(objective, served, kind))
        assert best in catalog.build([served], [A100], objective, (1, 2, 4, 8), 1)


def test_another_demand_computes_no_point_again() -> None:
    """However many places there are."""
    calls: list[int] = []
    variants = tuple(Variant(f"v{at}", 80.0, Launching(calls)) for at in range(500))
    served = Model("m", 0.1, 95.0, 100.0, variants)

    def kinds(demand_rps: float) -> tuple[SegmentKind, ...]:
        return catalog.build([replace(served, demand_rps=demand_rps)], [A100], Objective(), (1,), 1)

    first = kinds(100.0)
    computed = len(calls)
    assert len(first) == computed > 1024
    assert kinds(120.0) == first
    assert len(calls) == computed


def test_a_dedicated_place_runs_even_where_it_is_too_slow() -> None:
    """Within the rule the fastest batch; beyond it, batch size 1; out of memory, nothing."""
    model = fleets.model(slo_s=0.2)
    problem = fleets.problem(fleets.fleet((A100, 1)), [model])
    whole = Place(model, model.best, A100, catalog.whole(A100))
    in_time = catalog.dedicated(problem, whole)
    assert in_time is not None
    assert in_time.batch_size > 1
    assert in_time.processes == 1

    hurried = replace(model, slo_latency_s=0.001)
    late = catalog.dedicated(problem, replace(whole, model=hurried))
    assert late is not None
    assert late.batch_size == 1
    assert not catalog.in_time(problem.objective, hurried, late)

    small = next(kind for kind in T4.type.geometry.kinds)
    nothing = catalog.dedicated(
        problem, Place(model, model.best, A100, replace(small, memory_bytes=1))
    )
    assert nothing is None


def test_the_whole_slice_is_the_one_with_all_the_memory() -> None:
    assert catalog.whole(A100).name == "7g.40gb"
    assert catalog.whole(T4).name == "whole"


def test_clocks_are_shares_of_the_highest_and_only_where_that_is_known() -> None:
    """The highest is not held (0); a lower one takes longer and, near 0.7, less energy."""
    unknown = replace(A100, zone="FR", type=replace(A100.type, name="a100-80gb", max_clock_mhz=0))
    model = fleets.model(slo_s=10.0)
    kinds = catalog.build([model], [A100, unknown], Objective(), (8,), 1, clock_ratios=(1.0, 0.7))
    assert {kind.clock_mhz for kind in kinds if kind.pool == A100} == {0, 987}
    assert {kind.clock_mhz for kind in kinds if kind.pool == unknown} == {0}
    fast, slow = (
        next(
            k
            for k in kinds
            if (k.pool, k.variant, k.profile, k.clock_mhz) == (A100, "v3", "1g.5gb", mhz)
        )
        for mhz in (0, 987)
    )
    assert slow.latency_s > fast.latency_s
    assert slow.energy_j < fast.energy_j


def test_a_file_of_a_fixed_size_is_never_planned_with_larger_batches() -> None:
    """Sizes above it count as it."""
    model = fleets.model()
    fixed = replace(model, variants=tuple(replace(v, max_batch=2) for v in model.variants))
    kinds = catalog.build([fixed], [A100], Objective(), (1, 4, 16), 1)

    assert max(kind.batch_size for kind in kinds) == 2


def test_batches_are_as_large_as_the_time_between_tokens_allows() -> None:
    """A strict objective leaves small batches, a loose one the largest; none: as without tokens."""
    largest = [_largest_batch(tpot_s) for tpot_s in (0.012, 0.02, math.inf)]

    assert largest == sorted(largest)
    assert largest[0] < largest[1] <= largest[2] == 64


def test_an_objective_of_the_first_token_that_no_gpu_meets_is_named() -> None:
    model = replace(TEXT, slo_first_token_s=1e-3)
    types = {H100.type: 1}

    (_, why), *_ = unservable([model], types, Objective(), (1, 8))

    assert why.startswith("no variant can meet slo.ttft_s: 0.5 ms are there for it, and the least")


def test_no_model_is_refused_where_no_gpu_type_is_known() -> None:
    """A deployment for nodes that join names no GPU: whether they fit is seen when they do."""
    assert not [*unservable([TEXT], {}, Objective(), (1, 8))]


def test_a_long_prompt_keeps_clocks_at_which_its_first_token_is_late_out() -> None:
    """Usual prompts are in time at half the clock; with long ones to answer, it is not used."""
    profile = TEXT.variants[0].profile
    assert isinstance(profile, LanguageProfile)
    long = profile.changed(long_prompt_tokens=20 * profile.settings.prompt_tokens)
    times = long.token_times(H100.type.shape(catalog.whole(H100)), 1, 1)
    assert times is not None
    limit_s = 1.1 * times.first_token_s / Objective().latency_share

    def clocks_mhz(each: LanguageProfile) -> set[int]:
        variants = (replace(TEXT.variants[0], profile=each),)
        model = replace(TEXT, variants=variants, slo_first_token_s=limit_s)
        kinds = catalog.build([model], [H100], Objective(), (1,), 1, clock_ratios=(0.5, 1.0))
        return {kind.clock_mhz for kind in kinds}

    assert clocks_mhz(profile) == {0, round(0.5 * H100.type.max_clock_mhz)}
    assert clocks_mhz(long) == {0}


def _largest_batch(tpot_s: float) -> int:
    model = replace(TEXT, slo_token_s=tpot_s)
    kinds = catalog.build([model], [H100], Objective(), (1, 8, 64), 1)
    return max(kind.batch_size for kind in kinds)
