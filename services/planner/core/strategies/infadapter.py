"""InfAdapter (EuroMLSys'23) on GPU segments: Eq. 1, regardless of the deployment's own goals.

The paper sizes one container per variant in CPU cores; here a variant may have many segments, and
compute slices are the resource. The program is that of `exact`, with Eq. 1 as its only goal. CPU
cores reproduce the paper's setting, one size per variant out of one budget: a test proves that the
answer there is Eq. 1's optimum.
"""

from dataclasses import replace

from services.kit.config import Goals
from services.planner.core.model import Configuration, Problem
from services.planner.core.problem.load_split import with_load
from services.planner.core.problem.pricing import prices
from services.planner.core.strategies.exact import exact

EQUATION_1 = Goals(clover=0.0, fewest_gpus=0.0, infadapter=1.0)


def infadapter(problem: Problem) -> Configuration:
    """Solve InfAdapter's Eq. 1 over segments; shares fill the most accurate first.

    Weights are the deployment's `objective.infadapter`. The gap proven for Eq. 1 is reported only
    if Eq. 1 is also the deployment's own goal.
    """
    objective = problem.objective.model_copy(update={"goals": EQUATION_1})
    aimed = replace(problem, objective=objective)
    found = exact(aimed)
    gap = found.gap if prices(problem).goals == EQUATION_1 else None
    return replace(with_load(prices(aimed), found.segments), gap=gap)
