"""The deployment files of the demo, derived from the user's."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from services.kit.config import Deployment, Node
from services.kit.config.carbon_sources import TraceSource
from services.kit.net import free_port
from services.local import derived
from services.local.derived import anywhere

DAY_S: Final = 86_400.0
GPUS: Final = ("a100-40gb", "a100-40gb")
MIDNIGHT: Final = datetime(2026, 3, 20, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Rule:
    """Policies of one suite: planner strategy and instance choice."""

    strategy: str
    instance_choice: str


RULES: Final[Mapping[str, Rule]] = {
    "base": Rule("base", "idle_longest"),
    "cinquefoil": Rule("exact", "shares"),
}
"""The two suites. BASE is CLOVER's: the most accurate variant on whole GPUs, one for each model."""


@dataclass(frozen=True, slots=True)
class DemoFiles:
    """Files of one demo: one carbon service, and two suites that read it.

    Attributes:
        carbon: File of the carbon service.
        suites: File by suite.
        speedup: Grid seconds per second: a day in the load's length.
        zone: The zone whose intensity is shown.
    """

    carbon: Path
    suites: Mapping[str, Path]
    speedup: float
    zone: str


def write(deployment: Deployment, out: Path, seconds: float) -> DemoFiles:
    """Write the files, each suite on ports and with state of its own; earlier state is removed.

    Args:
        deployment: The user's; models, zones and objective are kept.
        out: Folder.
        seconds: Length of the day, s.
    """
    out = out.resolve()  # paths in a deployment file are relative to that file
    speedup = DAY_S / seconds
    grid = _grid(deployment, speedup)
    carbon = _write(grid, out / "carbon")
    suites = {
        name: _write(_suite(grid, rule, out / name, seconds), out / name)
        for name, rule in RULES.items()
    }
    zone = next(iter(deployment.nodes.values())).zone
    return DemoFiles(carbon, suites, speedup, zone)


def _grid(deployment: Deployment, speedup: float) -> Deployment:
    start = deployment.carbon.replay.start
    traced = any(
        isinstance(source, TraceSource)
        for zone in deployment.carbon.zones.values()
        for source in zone.sources
    )
    if start is None and not traced:
        start = MIDNIGHT
    replay = deployment.carbon.replay.model_copy(update={"start": start, "speedup": speedup})
    carbon = deployment.carbon.model_copy(update={**anywhere(), "replay": replay})
    return deployment.model_copy(update={"carbon": carbon})


def _suite(grid: Deployment, rule: Rule, folder: Path, seconds: float) -> Deployment:
    triggers = grid.planner.triggers.model_copy(
        update={"min_interval_s": seconds / 40, "settle_s": 1.0}
    )
    planner = grid.planner.model_copy(
        update={
            **anywhere(),
            "strategy": rule.strategy,
            "triggers": triggers,
            "database": folder / "state/planner.sqlite3",
        }
    )
    nodes = {
        name: node.model_copy(
            update={
                **anywhere(),
                "simulated": node.simulated or GPUS,
                "cpu": None,
                "state_dir": folder / "state" / name,
                "orphan_timeout_s": 10.0,
            }
        )
        for name, node in grid.nodes.items()
    }
    if rule.strategy == "base":
        nodes = _with_a_gpu_for_each(nodes, len(grid.models))
    choice = {"instance_choice": rule.instance_choice}
    models = {name: model.model_copy(update=choice) for name, model in grid.models.items()}
    return grid.model_copy(
        update={
            "planner": planner,
            "router": grid.router.model_copy(
                update={**anywhere(), "http_listen": f"127.0.0.1:{free_port()}"}
            ),
            "nodes": nodes,
            "models": models,
        }
    )


def _with_a_gpu_for_each(nodes: Mapping[str, Node], models: int) -> dict[str, Node]:
    """Return nodes with no fewer GPUs than models; the first node gets more of its own type."""
    name, first = next(iter(nodes.items()))
    types = first.simulated or GPUS
    more = max(0, models - sum(len(node.simulated or ()) for node in nodes.values()))
    grown = first.model_copy(update={"simulated": (*types, *types[:1] * more)})
    return {**nodes, name: grown}


def _write(deployment: Deployment, folder: Path) -> Path:
    return derived.write(deployment.model_dump(mode="json", exclude_unset=True), folder)
