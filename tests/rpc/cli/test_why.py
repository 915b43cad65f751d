"""No read command shows a placeholder without the reason and the command that ends it."""

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cinquefoil.condition.v1.records import Condition, ConditionKind
from cinquefoil.gpuagent.v1 import inventory_pb2
from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.router.v1 import router_pb2
from inference import grpc_service_pb2 as oip
from services.cli.main import app
from services.kit.conditions import control_off, described
from services.kit.config import MaintenanceWindow
from services.kit.errors import NotFound, Unavailable
from services.kit.net import free_port
from services.kit.rpc.condition_messages import condition_messages
from services.planner.core.maintenance import Freeze, Held, hold
from services.planner.core.plan import Pin
from services.router.core.readiness import Readiness
from tests.support.cli import fake_services
from tests.support.cli.fake_services import PLAN, Ended, cinquefoil, made

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
        if self._world.rolling:
            found.plan.state = plan_pb2.PLAN_STATE_ROLLING
        return found

    async def Explain(self, request: Any, context: Any) -> Any:
        raise self._no_plan()

    async def Diff(self, request: Any, context: Any) -> Any:
        raise self._no_plan()

    async def ListPlans(self, request: Any, context: Any) -> Any:
        if not self._world.planned:
            return planner_pb2.ListPlansResponse()
        pinned = any(each.kind is ConditionKind.PLAN_HELD for each in self._world.conditions)
        return planner_pb2.ListPlansResponse(plans=[PLAN], pinned_version=7 if pinned else 0)

    async def GetFleet(self, request: Any, context: Any) -> Any:
        found = await super().GetFleet(request, context)
        if not self._world.planned:
            del found.nodes[:]
            found.nodes.add(node=inventory_pb2.Node(name="node-0", zone="US-CAL"))
        found.conditions.extend(condition_messages(self._world.conditions))
        return found

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


COMMANDS = (
    "status",
    "models list",
    "models show digits",
    "models show text",
    "nodes list",
    "plan list",
    "plan show",
    "plan explain",
    "plan diff",
    "infer text",
    "carbon report",
    "gpuagent show",
    "receipts",
    "history",
    "batch list",
    "batch show 3f2a",
    "batch results 3f2a",
    "health node-0",
    "health router",
)

_PLACEHOLDER = re.compile(
    r"(?<!\S)(?:-|\?|n/a|none yet|not (?:ready|loaded|running|served|known)|unknown|no plan yet)"
    r"(?=[\s:;,.]|$)",
    re.IGNORECASE,
)
_COMMAND = re.compile(r"cinquefoil ([a-z-]+(?: [a-z-]+)?)")


def commands(text: str) -> Iterator[str]:
    """Yield the commands in a text that exist."""
    for found in _COMMAND.findall(text):
        known: Any = get_command(app)
        for word in found.split():
            known = getattr(known, "commands", {}).get(word, known)
        if known.name != get_command(app).name and not hasattr(known, "commands"):
            yield found


def unexplained(ended: Ended) -> list[str]:
    """Return the lines with a placeholder without a reason: beside it, or at its subject."""
    lines = [line for line in (ended.out + ended.err).splitlines() if line.strip()]
    explained = [line for line in lines if any(commands(line)) and len(line.split()) > 4]
    found = []
    for line in lines:
        subject = line.split()[0].strip(":,")
        if _PLACEHOLDER.search(line) and not any(
            line is each or subject in each for each in explained
        ):
            found.append(line)
    if ended.status and not explained:
        found.append(f"status {ended.status}: {lines}")
    return found


@pytest.mark.parametrize("world", list(WORLDS))
async def test_no_command_shows_a_placeholder_without_its_reason_and_a_command(
    world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every read command, in every state in which something is missing."""
    seen, config = WORLDS[world], tmp_path / "cinquefoil.yaml"
    monkeypatch.setattr("services.cli.infer.receipts._SILENT_S", 0.0)
    servicers = {
        "planner": made(Planner, seen),
        "router": made(Router, seen),
        "inference": made(Inference, seen),
    }
    found = {}
    async with fake_services.suite(config, without=seen.without, servicers=servicers):
        text = config.read_text()
        section = text[text.index("  digits:") : text.index("planner:")]
        added = section.replace("digits", "text").replace("svc", "s")
        batch = f"batch: {{listen: 127.0.0.1:{free_port()}}}\n" if seen.batch else ""
        config.write_text(f"{text.replace('planner: {', f'{added}planner: {{', 1)}{batch}")
        for command in COMMANDS:
            ended = await cinquefoil(*command.split(), "--config", config, columns=1000)
            assert "Traceback" not in ended.err, ended.err
            if bad := unexplained(ended):
                found[command] = bad

    assert not found


@pytest.mark.parametrize("world", ["pinned", "frozen", "maintenance"])
async def test_orders_that_a_hold_keeps_waiting_say_so(world: str, tmp_path: Path) -> None:
    """`nodes drain` and `config set`: done, and what has to end before a plan follows."""
    seen, config = WORLDS[world], tmp_path / "cinquefoil.yaml"

    class Ordered(Planner):
        async def CordonNode(self, request: Any, context: Any) -> Any:
            return planner_pb2.CordonNodeResponse()

        async def ChangeSettings(self, request: Any, context: Any) -> Any:
            return planner_pb2.ChangeSettingsResponse(changed=["models.digits.demand_rps"])

    async with fake_services.suite(config, servicers={"planner": made(Ordered, seen)}):
        for words in (
            ("nodes", "drain", "node-0"),
            ("config", "set", "models.digits.demand_rps=9"),
        ):
            ended = await cinquefoil(*words, "--config", config, columns=1000)
            said = ended.out.splitlines()

            assert ended.status == 0
            assert {described(each) for each in seen.conditions} <= {*said}


def long_plan() -> plan_pb2.Plan:
    """A plan with names as long as they are in practice."""
    plan = plan_pb2.Plan.FromString(PLAN.SerializeToString())
    plan.prediction.latency_s.clear()
    plan.prediction.latency_s["sentence-embeddings.multilingual-minilm"] = 2.305
    return plan


LONG = "sentence-embeddings.multilingual-minilm-l12-v2"


class LongNames(fake_services.PlannerServicer):
    """A fleet whose names are long."""

    async def ListPlans(self, request: Any, context: Any) -> Any:
        return planner_pb2.ListPlansResponse(plans=[long_plan()], pinned_version=7)

    async def GetFleet(self, request: Any, context: Any) -> Any:
        found = await super().GetFleet(request, context)
        (node,) = found.nodes
        node.node.name = "gpu-pool-eu-west.example-17"
        (segment,) = node.node.segments
        segment.spec.model, segment.spec.variant = LONG, "int8-dynamic"
        return found


class LongRouter(fake_services.RouterServicer):
    async def GetStatus(self, request: Any, context: Any) -> Any:
        instances = [router_pb2.InstanceStatus(variant="int8-dynamic", share=1, connected=True)]
        model = router_pb2.ModelStatus(
            model=LONG,
            answered=1_234_567,
            failed=1234,
            late=56_789,
            queue_depth=12345,
            rate_rps=12345.6,
            latency_s={"50": 2.305, "95": 8.289},
            slo_latency_s=400.0,
            instances=instances,
        )
        return router_pb2.GetStatusResponse(router_id="r1", models=[model])


async def test_at_80_columns_no_word_and_no_number_is_broken(tmp_path: Path) -> None:
    """Long names break after their separators, and every figure is whole."""
    config = tmp_path / "cinquefoil.yaml"
    servicers = {"planner": made(LongNames), "router": made(LongRouter)}
    async with fake_services.suite(config, servicers=servicers):
        outs = [
            (await cinquefoil(*command.split(), "--config", config, columns=80)).out
            for command in ("status", "plan list", "nodes list")
        ]

    for out in outs:
        assert max(map(len, out.splitlines())) <= 80
        words = {word.strip("┃│") for word in out.split()}
        parts = {part for name in (LONG, "int8-dynamic") for part in re.findall(r"\w+\W?", name)}
        assert not {word for word in words if "…" in word}
        for line in out.splitlines():
            for word in line.split():
                if word.startswith(("senten", "multil", "minil", "embed", "dynam")):
                    assert any(word.startswith(part.rstrip("-.")) for part in parts), line
    status = outs[0]
    for figure in ("2305/8289/400000", "12345.6", "1234567", "1234/56789", "3g.20gb@4", "1.5 kJ"):
        assert figure in status
    assert "2305 ms" in outs[1] or "2.3 s" in outs[1]
