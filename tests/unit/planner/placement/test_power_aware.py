"""`planner.placement: power_aware`: what follows the clock alike shares a GPU."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.config import PlacementRule
from services.planner.core.model import Configuration, Problem, Segment, SegmentKind
from services.planner.core.placement.placement import place
from tests.support.examples import examples
from tests.support.planner import fleets

HALF = "3g.20gb"
SENSITIVITIES = {"bert": 1.0, "gpt": 0.5, "resnet": 0.95, "opt": 0.55}


def problem(rule: PlacementRule, gpus: int = 2) -> Problem:
    """Four models, each in one variant of its own sensitivity, on A100s."""
    models = []
    for name, sensitivity in SENSITIVITIES.items():
        model = fleets.model(name, gmacs=(1.9,), accuracies=(80.0,))
        variant = replace(model.variants[0], clock_sensitivity=sensitivity)
        models.append(replace(model, variants=(variant,)))
    posed = fleets.problem(
        fleets.fleet((fleets.pool(), gpus)), models, batch_sizes=(1,), max_processes=1
    )
    return replace(posed, placement=rule)


def wanted(posed: Problem, counts: Mapping[str, int]) -> Configuration:
    """Return a configuration of so many halves of a GPU for each model."""
    halves = {kind.model: kind for kind in posed.catalog if kind.profile == HALF}
    segments = {halves[name]: number for name, number in counts.items() if number}
    return Configuration(segments, dict.fromkeys(segments, 1.0))


def placed(posed: Problem, configuration: Configuration) -> tuple[Segment, ...]:
    numbers = count()
    return place(posed, configuration, lambda: f"s-{next(numbers)}")


def together(segments: tuple[Segment, ...]) -> set[frozenset[str]]:
    """Return the groups of models that share a GPU."""
    by_gpu: dict[str, set[str]] = {}
    for segment in segments:
        by_gpu.setdefault(segment.gpu_uuid, set()).add(segment.kind.model)
    return {frozenset(each) for each in by_gpu.values()}


ONE_EACH = dict.fromkeys(SENSITIVITIES, 1)
ALIKE = {frozenset({"bert", "resnet"}), frozenset({"gpt", "opt"})}


@pytest.mark.parametrize(
    ("rule", "pairs"),
    [
        ("power_aware", ALIKE),
        ("least_change", {frozenset({"bert", "gpt"}), frozenset({"resnet", "opt"})}),
    ],
)
def test_models_that_follow_the_clock_alike_share_a_gpu(
    rule: PlacementRule, pairs: set[frozenset[str]]
) -> None:
    """Least change pairs them as they come: a sensitive model on each GPU keeps its clock up."""
    posed = problem(rule)
    assert together(placed(posed, wanted(posed, ONE_EACH))) == pairs


def test_what_runs_stays_where_it_is() -> None:
    """A bad pair is not torn apart: moving costs more than a clock saves."""
    before = problem("least_change")
    running = placed(before, wanted(before, ONE_EACH))
    posed = replace(
        problem("power_aware"), gpus=fleets.with_plan(before.gpus, running), running=running
    )
    assert placed(posed, wanted(posed, ONE_EACH)) == running


def test_what_is_new_goes_beside_what_is_like_it() -> None:
    """Of two GPUs that are half in use, each new model takes the one of its kind."""
    before = problem("least_change", gpus=3)
    first = placed(before, wanted(before, {"bert": 1, "opt": 1}))
    uuids = ("GPU-0-0", "GPU-0-1")
    running = tuple(replace(s, gpu_uuid=u) for s, u in zip(first, uuids, strict=True))
    posed = replace(
        problem("power_aware", gpus=3), gpus=fleets.with_plan(before.gpus, running), running=running
    )
    assert together(placed(posed, wanted(posed, ONE_EACH))) >= ALIKE


@examples(0.5)
@given(st.dictionaries(st.sampled_from(sorted(SENSITIVITIES)), st.integers(1, 2), min_size=1))
def test_it_places_just_what_the_configuration_says(counts: dict[str, int]) -> None:
    """No segment is lost or made up for the sake of power."""
    posed = problem("power_aware", gpus=4)
    segments = placed(posed, wanted(posed, counts))
    kinds: Counter[SegmentKind] = Counter(segment.kind for segment in segments)
    assert {kind.model: number for kind, number in kinds.items()} == counts
    for gpu in posed.gpus:
        layout = [s.placement for s in segments if s.gpu_uuid == gpu.uuid]
        assert gpu.pool.type.geometry.problem(layout) == ""
