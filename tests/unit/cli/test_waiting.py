"""Limits of `up`'s wait for a deployment that does not come about."""

from cinquefoil.condition.v1.records import Condition, ConditionKind
from services.cli.up.waiting import Patience, Progress


def failed(version: int) -> Progress:
    """A plan has failed, and none is being carried out."""
    sentence = f"plan {version} did not come true"
    return Progress(
        ready=False,
        conditions=(Condition(ConditionKind.ROLLOUT_FAILED, f"plan/{version}", sentence),),
    )


def test_plans_that_fail_one_after_another_end_the_waiting() -> None:
    """Each has another number: half a minute of failures is enough, whatever was tried between."""
    patience, ended_s = Patience(), 0.0
    for second in range(0, 600, 10):
        version = second // 10
        if patience.over(failed(version), second) or ended_s:
            ended_s = ended_s or second
        assert not patience.over(Progress(ready=False, rolling_out=version + 1), second + 5)

    assert ended_s == 40


def test_what_stops_a_model_ends_the_waiting_sooner_than_what_may_pass() -> None:
    """A missing file after 2 s; a node that is away after 30; without any condition never."""
    away = Progress(
        ready=False, conditions=(Condition(ConditionKind.NODE_AWAY, "node/one", "away"),)
    )
    missing = Progress(
        ready=False,
        conditions=(Condition(ConditionKind.MODEL_FILE_MISSING, "variant/a/b", "no file"),),
    )
    patience = Patience()

    ends = [patience.over(missing, at_s) for at_s in (0.0, 1.9, 2.1)]
    ends += [patience.over(away, at_s) for at_s in (3.0, 32.0, 34.0)]

    assert ends == [False, False, True, False, False, True]
    assert not Patience().over(Progress(ready=False), 1e6)
