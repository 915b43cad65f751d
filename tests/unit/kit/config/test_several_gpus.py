"""Variants on several GPUs as the deployment file gives them."""

from typing import Any

import pytest
from pydantic import ValidationError

from services.kit.config import Variant
from services.kit.config.models import Parallel

CHAT = {
    "accuracy": 80.0,
    "profile": {"kind": "language", "parameters_b": 70},
    "runtime": {"kind": "openai", "command": ["serve", "{port}", "{gpu_uuids}"]},
}


def variant(**settings: Any) -> Variant:
    return Variant.model_validate({**CHAT, **settings})


def test_layers_are_divided_among_all_gpus_unless_the_file_says_otherwise() -> None:
    """Without `parallel` it is tensor parallelism; one GPU divides nothing."""
    assert variant().division == Parallel()
    assert variant(gpus=4).division == Parallel(tensor=4)
    given = {"tensor": 2, "pipeline": 2, "data": 2, "expert": 4}
    assert variant(gpus=8, parallel=given).division == Parallel(**given)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"gpus": 3}, "must be one of 1, 2, 4, 8, 16"),
        ({"gpus": 32}, "of one node, and models over several nodes are not served"),
        ({"gpus": 4, "parallel": {"tensor": 2}}, "tensor x pipeline x data is 2, and gpus is 4"),
        ({"parallel": {"tensor": 2}}, "is 2, and gpus is 1"),
        (
            {"gpus": 4, "parallel": {"tensor": 4, "expert": 3}},
            "spread over GPUs of tensor x data, 4, which 3 does not divide",
        ),
        (
            {"gpus": 2, "runtime": {"kind": "generative"}, "file": "m.gguf"},
            "run by a server .*, not by generative",
        ),
        (
            {"gpus": 2, "profile": {"kind": "analytic", "gmacs_per_item": 1}},
            "language, not analytic",
        ),
    ],
)
def test_what_no_segment_can_be_is_refused_by_name(settings: dict[str, Any], why: str) -> None:
    """The field, and what is allowed."""
    with pytest.raises(ValidationError, match=why):
        variant(**settings)


def test_a_running_server_says_how_many_gpus_it_holds() -> None:
    """Its segment holds, and is metered on, as many."""
    runtime = {"kind": "openai", "address": "127.0.0.1:8000"}
    assert variant(gpus=4, runtime=runtime).gpus == 4
