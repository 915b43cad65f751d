"""No read command shows a placeholder without the reason and the command that ends it."""

import re
from pathlib import Path
from typing import Any

import pytest

from cinquefoil.planner.v1 import plan_pb2, planner_pb2
from cinquefoil.router.v1 import router_pb2
from services.kit.conditions import described
from tests.support.cli import fake_services
from tests.support.cli.fake_services import PLAN, Ended, cinquefoil, made
from tests.support.cli.worlds import WORLDS, Planner, commands, serving

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
    "plan dry-run",
    "plan graph",
    "infer text",
    "load text --seconds 1",
    "eval text",
    "carbon report",
    "grid list",
    "regions list",
    "config changed",
    "predictor status",
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
    found = {}
    async with serving(seen, config):
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
