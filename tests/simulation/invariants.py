"""Invariants of each history: some hold always, some once faults have ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Final

from tests.simulation import cluster as parts
from tests.simulation.cluster import ANOTHERS, LIAR, NODES, PLANNERS, ROUTERS, Cluster
from tests.simulation.machine import Disk, started
from tests.simulation.network import net
from tests.simulation.workers import workers

ENERGY: Final = 0.01
"""Largest difference of an account from its meter, relative."""

MOST_CALLS: Final = 2_000
MOST_TASKS: Final = 1_000
SETTLES_S: Final = 75.0
"""Time after the last fault within which all is as planned: a lost node is waited for, and its
workers' orphan timeout is 60 s."""


class Invariants:
    """Looks at a cluster. Attributes: broken: What did not hold, in order, each once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.broken: list[str] = []
        self._meters: dict[str, tuple[float, float]] = {}

    def look(self) -> None:
        """Check what must hold at every moment."""
        for each in self._always():
            if each not in self.broken:
                self.broken.append(each)

    def _always(self) -> Iterator[str]:
        yield from self._cluster.crashes
        yield from self._leadership()
        yield from self._answers()
        yield from self._shares()
        yield from self._bounds()

    def _leadership(self) -> Iterator[str]:
        leaders = list(self._cluster.leaders())
        if len(leaders) > 1:
            yield "two planners act"
        for planner in leaders:
            owner: dict[str, str] = {}
            fleet = planner.state.fleet
            for node in filter(fleet.connected, (*NODES, LIAR)):
                for gpu in fleet.node(node).gpus:
                    right = parts.shown.get(node, node)
                    if owner.setdefault(gpu.uuid, node) != node or right != node:
                        yield f"a GPU of node {right} is taken for one of {node}"
        for node, terms in parts.terms.items():
            if terms != sorted(terms):
                yield f"steps of node {node} interleave: terms {terms[-6:]}"

    def _answers(self) -> Iterator[str]:
        if self._cluster.heard[ANOTHERS]:
            yield "a request got another's answer"
        if self._cluster.heard["refused without a reason"]:
            yield "a request was refused without a reason"
        if self._cluster.answers and max(self._cluster.answers.values()) > 1:
            yield "a request was answered twice"

    def _shares(self) -> Iterator[str]:
        for name in ROUTERS:
            process = self._cluster.alive.get(name)
            router = process.facts.get("router") if process and process.alive else None
            if router is None:
                continue
            for routes in router.engine.registry.table.models:
                stages: dict[tuple[int, int], float] = defaultdict(float)
                for each in routes.instances:
                    stages[each.stages, each.stage] += each.share
                total = sum(share for (_, stage), share in stages.items() if stage == 0)
                if routes.instances and abs(total - 1.0) > 1e-6:
                    yield f"shares of {routes.model} at {name} sum to {total:.3f}"

    def _bounds(self) -> Iterator[str]:
        if len(net.calls) > MOST_CALLS:
            yield f"more than {MOST_CALLS} calls are open"
        for process in started.values():
            if process.alive and len(process.tasks) > MOST_TASKS:
                yield f"{process.name} has more than {MOST_TASKS} tasks"

    def energy(self) -> Iterator[str]:
        """Compare accounts with meters; between two looks, agents have not lost their accounts."""
        for node in NODES:
            agent = self._cluster.agent(node)
            if agent is None or node in self._cluster.flipped:  # which may have cost its account
                continue
            for uuid, account in agent.accounts.list().items():
                if account.total_j > 100.0 and account.error_ratio > ENERGY:
                    yield f"parts of {node}'s account miss its total by {account.error_ratio:.3f}"
                reading = self._metered(node, agent, uuid)
                if reading is None:
                    continue
                then_j, booked_j = self._meters.setdefault(uuid, (reading, account.total_j))
                drawn_j, booked_j = reading - then_j, account.total_j - booked_j
                slack_j = 100.0 + 2 * parts.periods["meters_s"] * max(account.power_w, 60.0)
                if abs(drawn_j - booked_j) > ENERGY * drawn_j + slack_j:
                    yield f"{node}'s meter counted {drawn_j:.0f} J, its account {booked_j:.0f} J"

    def _metered(self, node: str, agent: Any, uuid: str) -> float | None:
        def read() -> Any:
            return agent.node.device._devices.meter(uuid)

        try:
            reading = self._cluster.alive[node].context.copy().run(read)
        except Exception:  # noqa: BLE001 - a GPU that is away has none now
            return None
        return None if reading is None else float(reading.energy_j)

    def unsettled(self) -> str:  # noqa: PLR0911 - one per reason
        """Return why the cluster is not as its stored plan says; "": it is."""
        planner = next(self._cluster.leaders(), None)
        if planner is None:
            return "no planner leads"
        fleet, plan = planner.state.fleet, planner.publisher.board.value.plan
        if away := [name for name in NODES if not fleet.connected(name)]:
            return f"nodes are away: {away}"
        if plan is None or plan.state.name != "ACTIVE":
            return f"the newest plan is {plan and plan.state.name}"
        wanted = Counter({each.spec.segment_id: each.spec.processes for each in plan.segments})
        live = Counter(each.path.name.split(".")[0] for each in workers if each.alive())
        if wanted != live:
            missing, left = dict(wanted - live), dict(live - wanted)
            return f"of plan {plan.version} workers are missing: {missing}, or left over: {left}"
        for name in ROUTERS:
            router = self._cluster.alive[name].facts.get("router")
            if router is None or router.engine.registry.table.plan_version != plan.version:
                return f"router {name} has another plan than {plan.version}"
            if not all(each.instances for each in router.engine.registry.table.models):
                return f"router {name} knows no instance of a model"
        return ""

    def state(self) -> str:
        """Return the state that the search steers by: leases, fleet, rollout, instances, faults."""
        cluster = self._cluster
        leaders = list(cluster.leaders())
        words = ["".join("+" if cluster.alive[p].facts.get("planner") else "-" for p in PLANNERS)]
        for planner in leaders:
            fleet, plan = planner.state.fleet, planner.publisher.board.value.plan
            words.append("".join("01"[fleet.connected(name)] for name in NODES))
            words.append(plan.state.name if plan else "none")
            words.append(str(len(plan.segments)) if plan else "")
        words.append("".join("01"[cluster.alive[name].alive] for name in cluster.alive))
        words.append(f"{len(net.cut)}{len(net.lost)}{len(net.slow)}{Disk.fails[:4]}")
        for name in ROUTERS:
            router = cluster.alive[name].facts.get("router")
            if router is not None and cluster.alive[name].alive:
                table = router.engine.registry.table
                words.append("".join(str(len(each.instances)) for each in table.models))
        words.append(str(sum(each.alive() for each in workers)))
        return "|".join(words)
