"""Conditions: documented, and those that explain a model are found."""

from typing import Any

import pytest
from typer.main import get_command

from cinquefoil.condition.v1 import condition_pb2 as pb
from cinquefoil.condition.v1.records import Condition, ConditionKind
from services.cli.main import app
from services.kit.conditions import (
    EFFECTS,
    HOLDS,
    Effect,
    command_of,
    concerning,
    described,
    effect_of,
)
from services.kit.rpc.condition_messages import condition_messages, conditions_from

OFF = Condition(ConditionKind.CONTROL_OFF, "node/n", "it only reads", "nodes.n.control")
SLOW = Condition(ConditionKind.NO_VARIANT_MEETS_SLO, "model/digits", "too slow")
LOST = Condition(ConditionKind.MODEL_FILE_MISSING, "variant/digits/large", "no file")


def test_every_kind_has_an_effect() -> None:
    """A kind that is added to the contract cannot be forgotten here."""
    assert set(EFFECTS) == set(ConditionKind) - {ConditionKind.UNSPECIFIED}


def test_a_condition_says_which_setting_changes_it() -> None:
    assert described(OFF) == (
        "CONTROL_OFF node/n: it only reads "
        "(setting: nodes.n.control; run: cinquefoil gpuagent serve --node n)"
    )
    assert described(LOST) == (
        "MODEL_FILE_MISSING variant/digits/large: no file (run: cinquefoil models fetch digits)"
    )


@pytest.mark.parametrize("kind", list(EFFECTS))
def test_every_condition_has_a_command_that_exists(kind: ConditionKind) -> None:
    """The command of each kind can be run: its group, command and options are the CLI's."""
    command: Any = get_command(app)
    words = command_of(Condition(kind, "model/m", "")).split()[1:]
    while words and hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    known = {name for each in command.params for name in each.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("kind", HOLDS)
def test_a_hold_stops_the_models_that_it_leaves_out_and_no_others(kind: ConditionKind) -> None:
    plan, model = Condition(kind, "plan", "held"), Condition(kind, "model/text", "left out")

    assert (effect_of(plan), effect_of(model)) == (Effect.DEGRADES, Effect.STOPS)
    assert concerning("text", (OFF, plan, model)) == (model,)


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
    assert {kind for kind, effect in EFFECTS.items() if effect is Effect.STOPS} == {
        ConditionKind.CONTROL_OFF,
        ConditionKind.GPU_MISSING,
        ConditionKind.PROVIDER_MISSING,
        ConditionKind.MODEL_FILE_MISSING,
        ConditionKind.MODEL_FILE_DAMAGED,
        ConditionKind.NO_VARIANT_MEETS_SLO,
        ConditionKind.PROFILE_MISSING,
        ConditionKind.STRATEGY_WITHOUT_PIPELINES,
    }
