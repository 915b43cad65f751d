"""States of a deployment in which something is missing, and services that report them."""

import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from typer.main import get_command

from cinquefoil.condition.v1.records import Condition, ConditionKind
from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.router.v1 import router_pb2
from inference import grpc_service_pb2 as oip
from services.cli.main import app
from services.kit.conditions import control_off, described
from services.kit.config import MaintenanceWindow
from services.kit.errors import FailedPrecondition, NotFound, Unavailable
from services.kit.net import free_port
from services.kit.rpc.condition_messages import condition_messages
from services.planner.core.maintenance import Freeze, Held, hold
from services.planner.core.plan import Pin
from services.router.core.readiness import Readiness
from tests.support.cli import fake_services
from tests.support.cli.fake_services import PLAN, made

NOW = datetime(2026, 11, 27, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(hours=3)


def holds(pin: Pin | None, freeze: Freeze | None, *windows: MaintenanceWindow) -> list[Condition]:
    """The planner's conditions while a hold leaves the model `text` out."""
    found = Held(pin, NOW, freeze, hold(freeze, windows, NOW))
    return list(found.conditions(["text"]))


@dataclass(frozen=True)
class World:
    """State of a deployment.

    Attributes:
        conditions: The planner's.
        planned: Whether there is a plan.
        without: A service that does not run.
        rolling: Whether the plan is being carried out: its workers start.
        batch: Whether the deployment has a batch service, which does not run.
    """

    conditions: list[Condition] = field(default_factory=list)
    planned: bool = False
    without: str = ""
    rolling: bool = False
    batch: bool = False


AWAY = Condition(ConditionKind.NODE_AWAY, "node/node-0", "the agent of node-0 has not joined yet")
WORLDS = {
    "starting": World(),
    "no carbon": World(
        [Condition(ConditionKind.ZONE_UNKNOWN, "zone/US-CAL", "not known", "carbon.zones.US-CAL")],
        without="carbon",
    ),
    "no agent": World([AWAY]),
    "control off": World([control_off("node-0")]),
    "pinned": World(holds(Pin(7, "ada"), None), planned=True),
    "frozen": World(holds(None, Freeze(LATER, "sales", "ada", NOW)), planned=True),
    "maintenance": World(
        holds(None, None, MaintenanceWindow(start="02:00", length_s=60)), planned=True
    ),
    "no model file": World(
        [Condition(ConditionKind.MODEL_FILE_MISSING, "variant/text/s", "no file s.onnx")]
    ),
    "worker starting": World(planned=True, rolling=True),
    "worker failing": World(
        [Condition(ConditionKind.WORKER_FAILING, "variant/text/s", "s of text failed: no memory")],
        planned=True,
    ),
    "several GPUs that no node has": World(
        [
            Condition(
                ConditionKind.PROFILE_MISSING,
                "model/text",
                "text needs 4 GPUs of one node, and the largest has 2",
                "models.text.variants.s.gpus",
            )
        ]
    ),
    "parked": World(
        [Condition(ConditionKind.PARKED, "model/text", "no request for 10 min")], planned=True
    ),
    "batch service away": World(planned=True, batch=True),
    "planner away": World(planned=True, without="planner"),
    "router away": World(planned=True, without="router"),
}


class Planner(fake_services.PlannerServicer):
    """Says what the planner would in a world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def _no_plan(self) -> NotFound:
        why = "".join(f"; {described(each)}" for each in self._world.conditions)
        return NotFound(
            f"there is no plan yet{why or '; `cinquefoil plan watch` shows the first one'}"
        )

    async def GetPlan(self, request: Any, context: Any) -> Any:
        if not self._world.planned:
            raise self._no_plan()
        found = await super().GetPlan(request, context)
        found.plan.created_at.FromDatetime(NOW)
        if self._world.rolling:
            found.plan.state = plan_pb2.PLAN_STATE_ROLLING
        return found

    async def Explain(self, request: Any, context: Any) -> Any:
        raise self._no_plan()

    async def DryRun(self, request: Any, context: Any) -> Any:
        raise FailedPrecondition(str(self._no_plan()))

    async def Sweep(self, request: Any, context: Any) -> AsyncIterator[Any]:
        raise FailedPrecondition(str(self._no_plan()))
        yield

    async def Diff(self, request: Any, context: Any) -> Any:
        raise self._no_plan()

    async def ListPlans(self, request: Any, context: Any) -> Any:
        if not self._world.planned:
            return planner_pb2.ListPlansResponse()
        pinned = any(each.kind is ConditionKind.PLAN_HELD for each in self._world.conditions)
        listed = planner_pb2.ListPlansResponse(plans=[PLAN], pinned_version=7 if pinned else 0)
        listed.plans[0].created_at.FromDatetime(NOW)
        return listed

    async def GetFleet(self, request: Any, context: Any) -> Any:
        found = await super().GetFleet(request, context)
        if not self._world.planned:
            del found.nodes[:]
            found.nodes.add(node=inventory_pb2.Node(name="node-0", zone="US-CAL"))
        found.conditions.extend(condition_messages(self._world.conditions))
        return found

    async def ReadHistory(self, request: Any, context: Any) -> AsyncIterator[Any]:
        if not self._world.planned:
            yield planner_pb2.ReadHistoryResponse(step_s=600)
            return
        async for response in super().ReadHistory(request, context):
            yield response

    async def ReadAccount(self, request: Any, context: Any) -> AsyncIterator[Any]:
        return
        yield


class Router(fake_services.RouterServicer):
    """A router that serves no model yet, or not the added one."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def GetStatus(self, request: Any, context: Any) -> Any:
        text = router_pb2.ModelStatus(model="text", slo_latency_s=0.2)
        known = (await super().GetStatus(request, context)).models if self._world.planned else ()
        return router_pb2.GetStatusResponse(router_id="r1", models=[*known, text])

    async def WatchReceipts(self, request: Any, context: Any) -> AsyncIterator[Any]:
        for _ in range(2):
            yield router_pb2.WatchReceiptsResponse(router_id="r1")


class Inference(fake_services.InferenceServicer):
    """Refuses models as the router does, by the planner's conditions."""

    def __init__(self, world: World) -> None:
        self._readiness = Readiness(tuple(world.conditions))
        self._world = world

    async def ModelReady(self, request: Any, context: Any) -> Any:
        return oip.ModelReadyResponse(ready=self._world.planned and request.name == "digits")

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        if self._world.planned and request.name == "digits":
            return await super().ModelMetadata(request, context)
        why = self._readiness.why(request.name)
        raise Unavailable(f"no instance of {request.name!r} has reported its tensors yet{why}")


@asynccontextmanager
async def serving(world: World, config: Path) -> AsyncIterator[None]:
    """Serve a world while the block runs; `config` is written, and has the added model `text`."""
    servicers = {
        "planner": made(Planner, world),
        "router": made(Router, world),
        "inference": made(Inference, world),
    }
    async with fake_services.suite(config, without=world.without, servicers=servicers):
        _add(world, config)
        yield


def _add(world: World, config: Path) -> None:
    text = config.read_text()
    section = text[text.index("  digits:") : text.index("planner:")]
    added = section.replace("digits", "text").replace("svc", "s")
    batch = f"batch: {{listen: 127.0.0.1:{free_port()}}}\n" if world.batch else ""
    config.write_text(f"{text.replace('planner: {', f'{added}planner: {{', 1)}{batch}")


_CINQUEFOIL: Any = get_command(app)
_COMMAND = re.compile(r"cinquefoil ([a-z-]+(?: [a-z-]+)?)")


def commands(text: str) -> Iterator[str]:
    """Yield the commands in a text that exist."""
    for found in _COMMAND.findall(text):
        known: Any = _CINQUEFOIL
        for word in found.split():
            known = getattr(known, "commands", {}).get(word, known)
        if known is not _CINQUEFOIL and not hasattr(known, "commands"):
            yield found
