"""Variants that agents gave up on are left out of plans, and tried again later."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cinquefoil.condition.v1.records import Condition, ConditionKind
from cinquefoil.gpuagent.v1.records import Placement, Segment, SegmentSpec, SegmentState
from services.kit.config import Triggers
from services.planner.core.fleet import Node
from services.planner.core.triggers import Kind, Observation, cause
from services.planner.core.variant_blocklist import (
    VariantBlocklist,
    absent_variants,
    offered,
)
from tests.support.planner.fleets import model

BEST = ("vision", "v3")
SEEN = Observation({"Z": 1.0}, {"vision": 60.0}, {}, frozenset(), 0.5, strategy="exact")


def running(segment_id: str, state: SegmentState = SegmentState.QUARANTINED) -> Segment:
    spec = SegmentSpec(segment_id, *BEST, 8, 1, "GPU-a", Placement("1g.5gb", 0))
    return Segment(spec, state, ())


def node(*subjects: str, kind: ConditionKind = ConditionKind.MODEL_FILE_MISSING) -> Node:
    """Return a node that lacks the files of variants."""
    conditions = tuple(Condition(kind, subject, "no file") for subject in subjects)
    return Node("a", "Z", (), (), conditions=conditions)


def test_a_variant_is_absent_where_no_node_has_its_file_and_nothing_of_it_runs() -> None:
    """A running segment has loaded its file: a file that is taken away stops nothing."""
    without_both = node("variant/vision/v3", "variant/vision/v1")
    without_best = node("variant/vision/v3")

    assert absent_variants([without_both, without_best], ()) == {BEST}
    assert absent_variants([without_both, node()], ()) == frozenset()
    assert absent_variants([without_best], [running("s-1", SegmentState.READY)]) == frozenset()
    assert absent_variants([], ()) == frozenset()


def test_a_file_of_another_digest_counts_as_none() -> None:
    damaged = node("variant/vision/v3", kind=ConditionKind.MODEL_FILE_DAMAGED)

    assert absent_variants([damaged, node("variant/vision/v3")], ()) == {BEST}


def test_a_model_without_any_file_is_left_out() -> None:
    vision, best = model(), frozenset({BEST})
    names = frozenset((vision.name, each.name) for each in vision.variants)

    assert offered([vision], frozenset(), names) == ()
    (kept,) = offered([vision], frozenset(), best)
    assert [each.name for each in kept.variants] == ["v0", "v1", "v2"]


def test_a_quarantined_variant_is_left_out_for_ten_minutes() -> None:
    blocklist = VariantBlocklist()
    blocklist.learn([running("s-1")], now_s=100.0)

    assert blocklist.names(699.0) == {BEST}
    assert blocklist.names(700.0) == frozenset()


def test_the_same_segment_reported_again_does_not_make_it_longer() -> None:
    blocklist = VariantBlocklist()
    for now_s in (100.0, 400.0, 800.0):
        blocklist.learn([running("s-1")], now_s)

    assert blocklist.names(701.0) == frozenset()


def test_a_variant_that_fails_again_is_left_out_twice_as_long() -> None:
    blocklist = VariantBlocklist()
    blocklist.learn([running("s-1")], now_s=0.0)
    blocklist.learn([running("s-2")], now_s=1000.0)

    assert blocklist.names(2199.0) == {BEST}
    assert blocklist.names(2200.0) == frozenset()


def test_segments_that_work_block_no_variant() -> None:
    blocklist = VariantBlocklist()
    blocklist.learn([running(str(state), state) for state in SegmentState if state < 5], 0.0)

    assert blocklist.names(0.0) == frozenset()


@given(failed=st.sets(st.integers(0, 3)))
def test_a_model_never_loses_its_last_variant(failed: set[int]) -> None:
    """A variant that may fail is better than a model that no variant serves."""
    whole = model()
    names = [variant.name for variant in whole.variants]

    (left,) = offered(
        [whole], frozenset((whole.name, names[index]) for index in failed), frozenset()
    )

    kept = {names[index] for index in range(4)} - {names[index] for index in failed}
    assert {variant.name for variant in left.variants} == (kept or set(names))


def test_both_ways_are_causes_to_plan() -> None:
    failed = replace(SEEN, blocked=frozenset({BEST}))

    causes = [cause(SEEN, failed, Triggers()), cause(failed, SEEN, Triggers())]

    assert [each.reason for each in causes if each] == [
        "fleet: an agent gave up on v3 of vision",
        "fleet: v3 of vision may be tried again",
    ]
    assert {each.kind for each in causes if each} == {Kind.FLEET}
