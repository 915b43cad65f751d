"""Power of sites at the wall, beside their budgets.

Idle power counts for every GPU, also where `park_idle_gpus` leaves it out of the objective: a
meter shows it.
"""

from collections.abc import Iterator, Mapping

from services.planner.core.model import Pool, Problem, SiteLimit

_ROUNDING = 1e-5
"""Share of a budget left over by a solver's tolerance."""


def idle_w(problem: Problem, site: SiteLimit) -> float:
    """Return the power of a site without any segment, W."""
    pools = ((pool, count) for pool, count in problem.pools.items() if pool.site == site.name)
    return site.overhead_w + sum(pool.pue * pool.type.idle_power_w * n for pool, n in pools)


def room_w(problem: Problem, site: SiteLimit) -> float:
    """Return the power that a site's segments may draw above idle nodes, W, >= 0."""
    return max(0.0, site.limit_w - idle_w(problem, site))


def site_w(
    problem: Problem, in_use: Mapping[Pool, int], active_w: Mapping[Pool, float]
) -> dict[str, float]:
    """Return the power of each site with a budget, W.

    Args:
        problem: The problem.
        in_use: GPUs with segments by pool.
        active_w: Power of their devices above idle by pool, W.
    """
    return {
        site.name: idle_w(problem, site)
        + sum(
            pool.pue * (in_use.get(pool, 0) * pool.type.use_power_w + active_w.get(pool, 0.0))
            for pool in problem.pools
            if pool.site == site.name
        )
        for site in problem.sites
    }


def over_budget(problem: Problem, power_w: Mapping[str, float]) -> float:
    """Return the power above budgets that a plan can avoid, as shares of them, summed up."""
    return sum(over_w / max(site.limit_w, 1.0) for site, over_w in _over_w(problem, power_w))


def sites_over(problem: Problem, power_w: Mapping[str, float]) -> list[SiteLimit]:
    """Return the sites that draw more than they may, and could draw less."""
    return [site for site, _ in _over_w(problem, power_w)]


def _over_w(problem: Problem, power_w: Mapping[str, float]) -> Iterator[tuple[SiteLimit, float]]:
    for site in problem.sites:
        allowed_w = max(site.limit_w, idle_w(problem, site))
        over_w = power_w.get(site.name, 0.0) - allowed_w
        if over_w > _ROUNDING * max(allowed_w, 1.0):
            yield site, over_w
