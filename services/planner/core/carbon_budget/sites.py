"""Carbon budgets of sites: the part of the fleet's emissions that is theirs."""

from services.kit.config import CarbonBudget
from services.planner.core.fleet import Fleet


def part_of_sites(budget: CarbonBudget, fleet: Fleet, now_s: float) -> float:
    """Return the part of the fleet's highest power that a budget's sites have; 1: it names none.

    Args:
        budget: The budget.
        fleet: The fleet.
        now_s: Monotonic time, s.
    """
    if not budget.sites:
        return 1.0
    watts = {
        node.name: fleet.pue(node.name) * sum(gpu.type.max_power_w for gpu in node.gpus)
        for node in fleet.nodes(now_s)
    }
    own = sum(each for name, each in watts.items() if fleet.site(name) in budget.sites)
    return own / total if (total := sum(watts.values())) else 1.0
