"""Requests that would wait in vain are refused, with the reason."""

import pytest

from cinquefoil.condition.v1.records import Condition, ConditionKind
from services.kit.conditions import control_off
from services.router.core.readiness import Readiness

AWAY = Condition(ConditionKind.NODE_AWAY, "node/m", "the agent of m has not joined yet")
LOST = Condition(ConditionKind.MODEL_FILE_MISSING, "variant/digits/large", "no file")


def test_a_model_that_somebody_must_enable_is_refused_with_the_setting() -> None:
    refusal = Readiness((control_off("n"),)).refusal("digits")

    assert refusal is not None
    assert refusal.reason == "CONTROL_OFF"
    assert "nodes.n.control" in refusal.message


@pytest.mark.parametrize(
    "readiness",
    [
        Readiness(),
        Readiness((control_off("n"), AWAY)),
        Readiness((control_off("n"),), rolling_out=True),
        Readiness((LOST,)),
    ],
    ids=["nothing known", "another node may join", "rollout", "another variant may serve"],
)
def test_a_request_may_wait_for_what_may_come_by_itself(readiness: Readiness) -> None:
    assert readiness.refusal("digits") is None
