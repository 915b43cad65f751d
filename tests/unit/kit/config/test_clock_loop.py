"""The clock loop is off by default, and refused where the agent may hold no clocks."""

import pytest
from pydantic import ValidationError

from services.kit.config import Node


def test_the_loop_is_off_by_default() -> None:
    assert Node(zone="Z", simulated=("v100",)).clock_loop == "off"
    assert Node(zone="Z", simulated=("v100",), clock_loop="miad").may_hold_clocks


@pytest.mark.parametrize("rights", [{}, {"control": True}, {"allow_clocks": True}])
def test_on_real_gpus_the_loop_needs_both_rights(rights: dict[str, bool]) -> None:
    with pytest.raises(ValidationError, match="control and allow_clocks"):
        Node.model_validate({"zone": "Z", "clock_loop": "miad", **rights})


def test_with_both_rights_real_gpus_may_have_the_loop() -> None:
    node = Node(zone="Z", clock_loop="miad", control=True, allow_clocks=True)

    assert (node.clock_loop, node.may_hold_clocks) == ("miad", True)
