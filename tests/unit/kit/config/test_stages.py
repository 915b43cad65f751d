"""A variant's stages as the deployment file gives them, and what each is taken to need."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from services.kit.config import Variant
from services.kit.profiles.core.analytic import AnalyticProfile
from services.kit.profiles.factory import latency_shares, load_stages
from services.kit.profiles.table import Point, TableProfile

WHOLE = {"kind": "analytic", "gmacs_per_item": 12.0, "memory_mib": 900.0}


def variant(stages: list[Any], **settings: Any) -> Variant:
    return Variant.model_validate({"stages": stages, "accuracy": 0.9, "profile": WHOLE, **settings})


def test_a_file_alone_is_a_stage_and_stages_share_the_whole_by_their_shares() -> None:
    found = variant(["a.onnx", {"file": "b.onnx", "share": 2}])

    first, second = load_stages(found)

    assert [stage.file for stage in found.stages] == [Path("a.onnx"), Path("b.onnx")]
    assert first == AnalyticProfile(4.0, memory_mib=300.0, memory_mib_per_item=32.0)
    assert second == AnalyticProfile(8.0, memory_mib=600.0, memory_mib_per_item=32.0)
    assert latency_shares([first, second]) == pytest.approx((1 / 3, 2 / 3))


def test_a_stage_may_have_a_profile_of_its_own() -> None:
    own = {"kind": "analytic", "gmacs_per_item": 1.0}

    first, second = load_stages(variant([{"file": "a.onnx", "profile": own}, "b.onnx"]))

    assert first == AnalyticProfile(1.0)
    assert second == AnalyticProfile(6.0, memory_mib=450.0)


@pytest.mark.parametrize(
    ("stages", "settings", "why"),
    [
        (["a.onnx"], {}, "two or more"),
        (["a.onnx", "b.onnx"], {"file": "whole.onnx"}, "no file of its own"),
        (["a.onnx", "b.onnx"], {"runtime": {"kind": "external", "address": "h:1"}}, "is onnx"),
        (
            ["a.onnx", "b.onnx"],
            {"profile": {"kind": "table", "path": "t.csv", "gpu": "t4", "gmacs_per_item": 1}},
            "cannot be divided",
        ),
    ],
)
def test_what_is_no_pipeline_is_refused(
    stages: list[Any], settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(ValidationError, match=why):
        variant(stages, **settings)


def test_measured_stages_share_the_time_by_what_ran_for_all_of_them() -> None:
    """The batch of 8 ran for one stage only, and so does not count."""
    series = ("t4", "whole", 1, 1.0)
    power = AnalyticProfile(1.0)
    one = TableProfile({series: (Point(1, 0.01), Point(4, 0.02), Point(8, 0.9))}, power)
    other = TableProfile({series: (Point(1, 0.03), Point(4, 0.06), Point(8, None))}, power)

    assert latency_shares([one, other]) == pytest.approx((0.25, 0.75))
