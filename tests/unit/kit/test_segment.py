"""Segments that an agent may run: all others are refused by field."""

from typing import Any

import pytest

from cinquefoil.gpuagent.v1.records import MpsLimit, Placement, SegmentSpec
from services.kit.errors import InvalidArgument
from services.kit.segment import check_spec, whole_number

VALID: dict[str, Any] = {
    "segment_id": "s-1",
    "model": "digits",
    "variant": "small",
    "batch_size": 8,
    "processes": 2,
    "gpu_uuid": "GPU-a",
    "placement": Placement("1g.5gb", 3),
}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"segment_id": ""}, "spec.segment_id"),
        ({"segment_id": "../etc"}, "spec.segment_id"),
        ({"segment_id": "s" * 121}, "spec.segment_id"),
        ({"model": ""}, "spec.model"),
        ({"variant": ""}, "spec.variant"),
        ({"gpu_uuid": ""}, "spec.gpu_uuid"),
        ({"batch_size": 0}, "spec.batch_size"),
        ({"processes": 0}, "spec.processes"),
        ({"batch_size": 2**32 - 1}, "spec.batch_size"),
        ({"processes": 2**32 - 1}, "spec.processes"),
        ({"stage": 2**32 - 1}, "spec.stage"),
        ({"model": "m" * 129}, "spec.model"),
        ({"variant": "\x1b[2J"}, "spec.variant"),
        ({"limits": (MpsLimit(50),)}, "spec.limits"),
    ],
)
def test_a_wrong_spec_is_refused_by_field(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_spec(SegmentSpec(**VALID | wrong))

    assert caught.value.field == field


@pytest.mark.parametrize("percentage", [0, 101])
def test_a_process_may_take_a_share_of_its_slice_only(percentage: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_spec(SegmentSpec(**VALID | {"processes": 1, "limits": (MpsLimit(percentage),)}))

    assert caught.value.field == "spec.limits.thread_percentage"


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", " 1", "1_0", "²", "\u0661", "101", "9" * 5000, "1.0"]
)
def test_a_number_of_others_is_plain_digits_within_a_bound(text: str) -> None:
    """Other digits, and thousands of them, are no number: none raises."""
    assert whole_number(text, 100) is None


def test_a_number_of_others_is_read() -> None:
    assert [whole_number(text, 100) for text in ("0", "007", "100")] == [0, 7, 100]
