"""The suite without any source of the grid's intensity, in virtual time."""

from dataclasses import replace
from datetime import timedelta

from services.carbon.core.model import Sample
from services.carbon.core.sources.chain import Assumption, Chain, ChainLink
from services.carbon.core.sources.feed import Feed, Reading
from services.simulator.report.figures import figures
from services.simulator.run import draw_arrivals, simulate
from tests.support.scenarios import ScenarioOf

HALF_HOUR = timedelta(minutes=30)
SAID = {0: 20.0, 1: 900.0, 2: 20.0, 6: 20.0, 7: 900.0, 8: 20.0}
"""By half hour; the two sources are silent from 1:30 to 3:00."""


def test_an_outage_of_every_source_loses_no_request_and_plans_go_on(scenario: ScenarioOf) -> None:
    """Grid time runs 60 times as fast as the load: the outage is long for requests, too.

    What stands in (held for half an hour, then assumed) causes plans as any value does, and plans
    record how old it was.
    """
    setting = scenario(
        policies=[{"strategy": "exact", "carbon_weight": 0.3}],
        deployment={
            "planner": {"triggers": {"min_interval_s": 5}},
            "nodes": {"n": {"simulated": ["a100-40gb", "a100-40gb"]}},
        },
        duration_s=300,
        grid_speedup=60,
    )
    start, feeds = setting.start, (Feed("first"), Feed("second"))
    for feed in feeds:
        samples = (Sample(start + step * HALF_HOUR, value) for step, value in SAID.items())
        feed.add(Reading(tuple(samples)), start + 10 * HALF_HOUR)
    links = tuple(ChainLink(feed, HALF_HOUR * 1.2) for feed in feeds)
    chain = Chain(links, Assumption(400.0, HALF_HOUR, start))
    setting = replace(setting, sources={"Z": chain})

    seen = simulate(setting, setting.scenario.policies[0], draw_arrivals(setting))

    found = figures(seen)
    assert found.lost == 0
    assert found.models["m"].met
    assert found.models["m"].answered > 0.99 * found.models["m"].sent - 40
    assumed = next(plan for plan in seen.plans if "20.0 -> 400.0" in plan.reason)
    back = next(plan for plan in seen.plans if "400.0 -> 20.0" in plan.reason)
    dwell_s = 15  # a quarter of an hour of grid time
    assert 126 + dwell_s <= assumed.decided_s <= 150  # 1.2 half hours fresh, one held, after 60 s
    assert 180 + dwell_s <= back.decided_s <= 190 + dwell_s
