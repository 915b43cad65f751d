"""Conditions: documented, and those that explain a model are found."""

import pytest

from cinquefoil.condition.v1 import condition_pb2 as pb
from services.kit.conditions import Condition, ConditionKind, Effect, concerning
from services.kit.rpc.condition_messages import condition_messages, conditions_from

OFF = Condition(ConditionKind.CONTROL_OFF, "node/n", "it only reads", "nodes.n.control")
SLOW = Condition(ConditionKind.NO_VARIANT_MEETS_SLO, "model/digits", "too slow")
LOST = Condition(ConditionKind.MODEL_FILE_MISSING, "variant/digits/large", "no file")


def test_every_kind_has_the_number_and_name_of_the_wire() -> None:
    """The enum of the contract and that of the code are one list."""
    names = {f"CONDITION_KIND_{kind.name}": kind.value for kind in ConditionKind}

    assert dict(pb.ConditionKind.items()) == {"CONDITION_KIND_UNSPECIFIED": 0, **names}


def test_a_condition_says_which_setting_changes_it() -> None:
    assert str(OFF) == "CONTROL_OFF node/n: it only reads (setting: nodes.n.control)"
    assert str(SLOW) == "NO_VARIANT_MEETS_SLO model/digits: too slow"


def test_a_model_s_own_condition_explains_it() -> None:
    assert concerning("digits", (OFF, SLOW)) == (SLOW,)


@pytest.mark.parametrize("model", ["digits", "text"])
def test_without_one_those_of_nodes_explain_a_model(model: str) -> None:
    assert OFF in concerning(model, (OFF, LOST))


def test_other_models_conditions_do_not_explain_a_model() -> None:
    assert concerning("text", (SLOW, LOST)) == ()


def test_conditions_come_through_the_wire_and_newer_kinds_are_left_out() -> None:
    """A router must survive a planner that knows more kinds."""
    newer = pb.Condition(kind=999, subject="model/digits", sentence="?")  # type: ignore[arg-type]

    assert conditions_from([*condition_messages([OFF, LOST]), newer]) == (OFF, LOST)


def test_what_waits_or_degrades_stops_nothing() -> None:
    assert {kind for kind in ConditionKind if Condition(kind, "", "").effect is Effect.STOPS} == {
        ConditionKind.CONTROL_OFF,
        ConditionKind.GPU_MISSING,
        ConditionKind.PROVIDER_MISSING,
        ConditionKind.MODEL_FILE_MISSING,
        ConditionKind.MODEL_FILE_DAMAGED,
        ConditionKind.NO_VARIANT_MEETS_SLO,
        ConditionKind.PROFILE_MISSING,
        ConditionKind.STRATEGY_WITHOUT_PIPELINES,
    }
