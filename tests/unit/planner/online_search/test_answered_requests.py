"""Requests that instances have answered, by their agents' counts."""

from cinquefoil.gpuagent.v1.records import Placement, Segment, SegmentSpec, SegmentState
from services.planner.core.online_search.answered_requests import AnsweredRequests
from services.planner.core.online_search.measurement import CounterReadings, SegmentCounters


def segment(name: str, model: str, stage: int = 0) -> Segment:
    spec = SegmentSpec(name, model, "v", 8, 1, "GPU-1", Placement("7g.40gb", 0), stage=stage)
    return Segment(spec, SegmentState.READY, ("h:1",))


def test_answers_are_counted_by_model_whatever_becomes_of_segments() -> None:
    """Ended ones stay; counts that an agent lost add nothing, nor do later stages of a pipeline."""
    running = {"a": segment("a", "m"), "b": segment("b", "m"), "c": segment("c", "m", stage=1)}
    readings = CounterReadings()
    answered = AnsweredRequests(readings, lambda: running)
    assert answered() == {}
    readings.metered("node", {"a": SegmentCounters(10), "c": SegmentCounters(9)})
    assert answered() == {"m": 10}
    readings.metered("node", {"a": SegmentCounters(15), "b": SegmentCounters(3)})
    assert answered() == {"m": 18}
    readings.metered("node", {"b": SegmentCounters(1)})
    assert answered() == {"m": 18}
    readings.metered("node", {"b": SegmentCounters(4), "unknown": SegmentCounters(100)})

    assert answered() == {"m": 21}
