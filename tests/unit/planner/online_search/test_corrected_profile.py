"""A profile that requests were late under is corrected for every strategy, until measured again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.profiles.core.language import LanguageProfile, TokenProfile
from services.planner.core.decide import pose
from services.planner.core.model import SegmentKind, Variant
from services.planner.core.online_search.corrected_profile import corrected, learned, slower
from services.planner.core.online_search.measurement import Measurement, Observed
from services.planner.core.online_search.profile_corrections import Beliefs, Cell
from services.planner.core.problem import catalog
from tests.support.examples import examples
from tests.support.planner import fleets
from tests.support.planner.decisions import MODEL, SETTINGS, snapshot

POSED = pose(snapshot(), SETTINGS)
KIND = POSED.catalog[0]


def measured(kind: SegmentKind, slowdown: float, batches: int = 100) -> Measurement:
    """Return what is counted where full batches take so many times as long as profiled."""
    busy_s = batches * slowdown * kind.latency_s
    energy_j = batches * kind.batch_size * kind.energy_j
    seen = Observed(1, batches * kind.batch_size, batches, busy_s, energy_j)
    return Measurement(busy_s / kind.processes, {kind: seen}, {})


def latencies_s(beliefs: Beliefs) -> dict[tuple[str, str, int, int], float]:
    """Return the batch times of the catalog that plans are made from."""
    state = snapshot()
    kinds = pose(replace(state, models=corrected(state.models, beliefs)), SETTINGS).catalog
    return {(k.variant, k.profile, k.batch_size, k.processes): k.latency_s for k in kinds}


@examples(0.4)
@given(st.floats(1.1, 2.5))
def test_what_was_measured_to_be_slow_is_planned_as_slow_and_so_is_what_was_not(
    slowdown: float,
) -> None:
    seen = measured(KIND, slowdown)
    beliefs = learned(Beliefs(), seen, (MODEL,), {"digits"})
    profiled, believed = latencies_s(Beliefs()), latencies_s(beliefs)

    assert believed
    for key, latency_s in believed.items():
        assert latency_s == pytest.approx(slowdown * profiled[key], rel=1e-6)
    assert set(slower(Beliefs(), beliefs, seen)) == {"digits"}
    assert slower(beliefs, learned(beliefs, seen, (MODEL,), {"digits"}), seen) == {}


def test_tokens_are_slower_by_as_much() -> None:
    """A corrected language model keeps its objectives of tokens."""
    pool, profile = fleets.pool("h100-80gb"), LanguageProfile.of(8.0)
    shape = pool.type.shape(catalog.whole(pool))
    cell = Cell("digits", "8b", "h100-80gb", shape.profile)
    beliefs = Beliefs().measured(cell, 1.5, 1.0)
    model = replace(MODEL, variants=(Variant("8b", 1.0, profile),))
    (slow,) = (each.variants[0].profile for each in corrected([model], beliefs))

    assert isinstance(slow, TokenProfile)
    times, right = slow.token_times(shape, 8, 1), profile.token_times(shape, 8, 1)
    assert times is not None
    assert right is not None
    assert times.token_s == pytest.approx(1.5 * right.token_s)
    assert times.first_token_s == pytest.approx(1.5 * right.first_token_s)


def test_a_model_whose_requests_are_in_time_keeps_its_profile() -> None:
    assert learned(Beliefs(), measured(KIND, 1.5), (MODEL,), set()) == Beliefs()


def test_a_correction_stays_until_something_else_is_measured() -> None:
    beliefs = learned(Beliefs(), measured(KIND, 1.5), (MODEL,), {"digits"})
    assert learned(beliefs, measured(KIND, 1.5, batches=5), (MODEL,), set()) is beliefs
    for _ in range(60):
        beliefs = learned(beliefs, measured(KIND, 1.0), (MODEL,), set())

    assert latencies_s(beliefs) == latencies_s(Beliefs())
