"""A clock loop's report is a reason to plan, and for more load than before."""

from dataclasses import replace

from services.kit.config import Triggers
from services.planner.core.service_level import ServiceLevel, ServiceTarget
from services.planner.core.triggers import Kind, Observation, cause

WHY = "digits takes 247 % of its objective since 5 s on GPU-1"
SEEN = Observation({"Z": 1.0}, {"digits": 60.0}, {}, frozenset(), 0.5, strategy="exact")


def level() -> ServiceLevel:
    return ServiceLevel({"digits": ServiceTarget(late_share=0.05, accuracies={"small": 0.9})})


def test_a_gpu_without_slack_is_reported_as_the_agent_reported_it() -> None:
    served = level()
    served.need_more(["digits"], WHY)

    found = cause(SEEN, replace(SEEN, late=served.late()), Triggers())
    assert found is not None
    assert (found.kind, found.reason) == (Kind.SLA, f"sla: {WHY}")


def test_the_next_plan_provides_for_more_and_then_it_is_forgotten() -> None:
    served = level()
    served.need_more(["digits"], WHY)
    served.demand_more({"digits": 1.0}, floor=0.0, now_s=0.0)
    served.forget()

    assert served.provided_rps({"digits": 1.0}, 0.0)["digits"] > 1.0
    assert served.late() == ()


def test_late_answers_are_reported_once_and_with_numbers() -> None:
    served = level()
    served.observe({"digits": 60}, {"digits": {"small": 100}}, now_s=1.0)
    served.need_more(["digits"], WHY)

    (found,) = served.late()
    assert (found.seen, found.why) == (0.6, "")


def test_a_model_that_the_planner_does_not_know_is_no_cause() -> None:
    served = level()
    served.need_more(["of another deployment"], WHY)

    assert served.late() == ()
