"""`cinquefoil plan ...` in process, against a real planner between real peers."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import structlog
import yaml
from typer.testing import CliRunner

from services.cli.main import app
from services.kit import config
from services.kit.net import free_port
from tests.support.fake_agent import Agent, Grid, active, carbon, deployment, living, planner
from tests.support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Shell:
    """Runs `cinquefoil plan` on one deployment file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    async def __call__(self, *words: str, config: bool = True) -> Ended:
        where = ["--config", str(self.file)] if config else []
        result = await asyncio.to_thread(
            CliRunner(env={"COLUMNS": "160", "NO_COLOR": "1"}).invoke,
            app,
            ["plan", words[0], *where, *words[1:]],
        )
        return Ended(result.exit_code, result.stdout, result.stderr)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The planner runs in this process: its log must not mix with what commands print."""
    with structlog.testing.capture_logs():
        yield


@pytest_asyncio.fixture(loop_scope="module")
async def grid() -> AsyncIterator[Grid]:
    """A carbon service of one zone, on the loop of this module."""
    async with carbon() as serving:
        yield serving


def calm(folder: Path, grid: Grid) -> config.Deployment:
    """Return the deployment of a planner that re-plans only on request; write it too."""
    settings = deployment(
        folder,
        grid.port,
        listen=f"127.0.0.1:{free_port()}",
        triggers=config.Triggers(min_interval_s=60.0, settle_s=0.3),
    )
    written = yaml.safe_dump(settings.model_dump(mode="json", exclude_none=True))
    (folder / "cinquefoil.yaml").write_text(written)
    return settings


@asynccontextmanager
async def planned(settings: config.Deployment) -> AsyncIterator[None]:
    """Run the planner with two GPUs, and plan 1 (BASE) active."""
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        yield


@pytest.fixture
def settings(tmp_path: Path, grid: Grid) -> config.Deployment:
    """A planner's deployment."""
    return calm(tmp_path, grid)


@pytest.fixture
def shell(tmp_path: Path, settings: config.Deployment) -> Shell:
    """The command line of a planner that does not run yet."""
    return Shell(tmp_path / "cinquefoil.yaml")


@pytest_asyncio.fixture(loop_scope="module")
async def cinquefoil(settings: config.Deployment, shell: Shell) -> AsyncIterator[Shell]:
    """The command line of a planner with plan 1 active."""
    async with planned(settings):
        yield shell


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def dry(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shell]:
    """The same, for all tests that change nothing."""
    folder = tmp_path_factory.mktemp("asking")
    async with carbon() as grid, planned(calm(folder, grid)):
        yield Shell(folder / "cinquefoil.yaml")


async def versions(cinquefoil: Shell) -> list[tuple[str, bool]]:
    listed = await cinquefoil("list", "--json")
    return [(each["version"], each["pinned"]) for each in listed.json]


# ---- dry runs ----------------------------------------------------------------------------------


async def test_a_dry_run_says_why_what_changes_and_how_to_have_it(dry: Shell) -> None:
    ended = await dry("dry-run", "--strategy", "exact", "--carbon-weight", "1")

    assert (ended.status, ended.err) == (0, "")
    for said in (
        "Would be decided by exact",
        "It is proven to be the best there is.",
        "% carbon and",
        "runner-up",
        "BASE",
        "From plan 1 to the dry run:",
        "digits/small",
        "Nothing was changed. Within 10 minutes: cinquefoil plan apply ",
    ):
        assert said in ended.out
    assert await versions(dry) == [("1", False)]


async def test_a_dry_run_as_json_is_the_response_of_the_contract(dry: Shell) -> None:
    ended = await dry(
        "dry-run",
        *("--demand", "digits=90", "--intensity", "Z=20", "--accuracy-floor", "0.95"),
        *("--objective", "fewest-gpus", "--without-gpu", "GPU-2"),
        *("--add-gpus", "a100-40gb:node-a:2", "--strategy", "exact", "--json"),
    )
    answer = ended.json

    assert ended.status == 0
    assert answer["plan"]["inputs"]["demand_rps"] == {"digits": 90.0}
    assert answer["plan"]["inputs"]["intensity_gco2e_per_kwh"] == {"Z": 20.0}
    assert answer["plan"]["inputs"]["gpus"] == {"a100-40gb": 3}
    assert answer["plan"]["inputs"]["goals"]["fewest_gpus"] == 1.0
    assert answer["plan"]["inputs"]["accuracy_floor"] == 0.95
    assert answer["explanation"]["sentences"]
    assert answer["diff"]["from_version"] == "1"
    assert answer["proposal_id"] == ""


async def test_what_was_proposed_is_applied_and_shown(cinquefoil: Shell) -> None:
    proposed = await cinquefoil("dry-run", "--strategy", "co2opt", "--json")
    ended = await cinquefoil("apply", proposed.json["proposal_id"])

    assert ended.status == 0
    assert "Plan 2 is being rolled out. `cinquefoil plan show 2` shows it." in ended.out
    assert [version for version, _ in await versions(cinquefoil)] == ["2", "1"]


async def test_a_dry_run_that_is_applied_at_once_names_its_version(cinquefoil: Shell) -> None:
    ended = await cinquefoil("dry-run", "--strategy", "co2opt", "--apply", "--json")

    assert ended.status == 0
    assert ended.json["applied"]["version"] == "2"
    assert ended.json["applied"]["segments"] == ended.json["plan"]["segments"]


async def test_what_is_made_up_is_not_applied(dry: Shell) -> None:
    ended = await dry("dry-run", "--demand", "digits=9", "--apply")

    assert ended.status == 1
    assert ended.err.startswith("--apply: this plan is for a demand, an intensity or GPUs")
    assert await versions(dry) == [("1", False)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--demand", "digits"), "--demand: must be MODEL=RPS, got 'digits'"),
        (("--demand", "digits=many"), "--demand: must be MODEL=RPS, got 'digits=many'"),
        (("--intensity", "=5"), "--intensity: must be ZONE=GRAMS, got '=5'"),
        (("--add-gpus", "a100-40gb:2"), "--add-gpus: must be TYPE:NODE:COUNT"),
        (("--add-gpus", "a100-40gb:node-a:-1"), "--add-gpus: must be TYPE:NODE:COUNT"),
        (("--demand", "digits=-1"), "what_if.demand_rps"),
        (("--demand", "digits=nan"), "what_if.demand_rps"),
        (("--demand", "cats=1"), "no model 'cats'; there is digits"),
        (("--intensity", "Y=1"), "no zone 'Y'; there is Z"),
        (("--carbon-weight", "2"), "what_if.carbon_weight"),
        (("--strategy", "magic"), "what_if.strategy: must be one of annealing, base"),
        (("--without-gpu", "GPU-9"), "the fleet has no GPU 'GPU-9'"),
        (("--add-gpus", "tpu:node-a:1"), "must be a type of the fleet (a100-40gb), got 'tpu'"),
    ],
)
async def test_what_cannot_be_is_one_sentence_and_changes_nothing(
    dry: Shell, words: tuple[str, str], said: str
) -> None:
    ended = await dry("dry-run", *words)

    assert (ended.status, ended.out) == (1, "")
    assert said in ended.err
    assert ended.err.count("\n") == 1
    assert await versions(dry) == [("1", False)]


# ---- explain, diff, list, show -----------------------------------------------------------------


async def test_explain_shows_promises_side_by_side(dry: Shell) -> None:
    ended = await dry("explain", "1")

    assert ended.status == 0
    for said in ("Why plan 1 is as it is", "It is BASE", "runner-up", "latency digits", "points"):
        assert said in ended.out


async def test_explain_as_json_is_the_explanation(dry: Shell) -> None:
    explanation = (await dry("explain", "--json")).json

    assert explanation["version"] == "1"
    assert explanation["base"]["outlook"]["accuracy"] == {"digits": 98.0}
    assert explanation["gap"] > 0, "BASE is not the best there is"


async def test_graph_is_the_newest_plans_configuration_graph(dry: Shell, tmp_path: Path) -> None:
    """The plan is that of `show`; a picture is a file; text formats are what their tools read."""
    plan = (await dry("show", "--json")).json
    found = (await dry("graph")).json
    assert sum(edge["weight"] for edge in found["edges"]) == len(plan["segments"])
    assert {node["id"] for node in found["nodes"] if not node["bipartite"]} == {
        f"{each['spec']['model']}/{each['spec']['variant']}" for each in plan["segments"]
    }
    assert (await dry("graph", "1", "--format", "graphml")).out.startswith("<graphml")
    assert (await dry("graph", "--format", "dot")).out.startswith("digraph")
    picture = tmp_path / "out" / "plan.png"
    assert (await dry("graph", "--format", "png", "--out", str(picture))).status == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


async def test_a_picture_needs_a_file(dry: Shell) -> None:
    ended = await dry("graph", "--format", "png")
    assert (ended.status, "--out" in ended.err) == (2, True)


async def test_diff_names_what_starts_and_what_stops(cinquefoil: Shell) -> None:
    await cinquefoil("dry-run", "--strategy", "co2opt", "--apply")
    ended = await cinquefoil("diff", "1", "2")
    found = (await cinquefoil("diff", "1", "2", "--json")).json

    assert "From plan 1 to plan 2: starts 14 segments, stops 2, keeps 0." in ended.out
    assert (len(found["started"]), len(found["stopped"]), found["kept"]) == (14, 2, 0)


async def test_list_sets_what_was_seen_beside_what_was_expected(cinquefoil: Shell) -> None:
    await cinquefoil("pin")
    ended = await cinquefoil("list")
    (listed,) = (await cinquefoil("list", "--json")).json

    assert "Plan 1 is pinned; run: cinquefoil plan unpin" in ended.out
    assert "first plan: 1 node, 2 GPUs" in ended.out
    assert {each["name"] for each in listed["measures"]} == {
        "power_w",
        "carbon_gco2e_per_h",
        "latency_s",
        "accuracy",
    }
    assert listed["pinned"] is True


async def test_strategies_explain_themselves_without_a_deployment() -> None:
    shell = Shell(Path("none"))
    ended = await shell("strategies", config=False)
    listed = (await shell("strategies", "--json", config=False)).json

    assert ended.status == 0
    assert {"annealing", "base", "co2opt", "exact"} <= {each["name"] for each in listed}
    assert all(each["summary"].endswith(".") for each in listed)


# ---- orders ------------------------------------------------------------------------------------


async def test_pin_holds_and_unpin_lets_go(cinquefoil: Shell) -> None:
    held = await cinquefoil("pin")
    during = await versions(cinquefoil)
    free = await cinquefoil("unpin")

    assert held.out == "Plan 1 is pinned: no other is made until `cinquefoil plan unpin`.\n"
    assert during == [("1", True)]
    assert free.out == "No plan is pinned; the planner makes plans by itself.\n"
    assert await versions(cinquefoil) == [("1", False)]


async def test_rollback_runs_an_old_plan_again(cinquefoil: Shell) -> None:
    await cinquefoil("dry-run", "--strategy", "co2opt", "--apply")
    ended = await cinquefoil("rollback", "1")

    assert (
        "Plan 1 is being rolled out again as plan 3, and pinned: no other plan is made until "
        "`cinquefoil plan unpin`."
    ) in ended.out
    assert (await versions(cinquefoil))[0] == ("3", True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("explain", "99"), "no plan has version 99 (NOT_FOUND)"),
        (("diff", "99"), "no plan has version 99 (NOT_FOUND)"),
        (("pin", "99"), "no plan has version 99 (NOT_FOUND)"),
        (("rollback", "99"), "no plan has version 99 (NOT_FOUND)"),
        (("apply", "made-up"), "proposal_id: no proposal 'made-up'; proposals end after 10"),
        (("watch", "--after", "99"), "after_version: must be 0..1, the newest plan, got 99"),
    ],
)
async def test_what_is_not_there_is_one_sentence(
    dry: Shell, words: tuple[str, ...], said: str
) -> None:
    ended = await dry(*words)

    assert (ended.status, ended.out) == (1, "")
    assert said in ended.err
    assert ended.err.count("\n") == 1
    assert await versions(dry) == [("1", False)]


@pytest.mark.parametrize("command", ["dry-run", "explain", "pin", "watch"])
async def test_a_planner_that_is_away_is_one_sentence(shell: Shell, command: str) -> None:
    ended = await shell(command)

    assert ended.status == 1
    assert "`cinquefoil up` starts the deployment" in ended.err


# ---- watch -------------------------------------------------------------------------------------


async def test_watch_goes_on_over_a_restart_and_misses_no_plan(
    settings: config.Deployment, shell: Shell
) -> None:
    """A process as users run it, a planner that restarts, ctrl-c."""
    agent = Agent("node-a", ("GPU-1", "GPU-2"))
    async with planner(settings) as stub, living(agent, stub):
        await active(stub, 1)
        watching = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.cli", "plan", "watch", "--after", "0", "--json"),
            *("--config", str(shell.file)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert watching.stdout is not None
        lines = [json.loads(await watching.stdout.readline())]
    async with planner(settings) as stub, living(agent, stub):

        async def applied() -> bool:  # nothing can be decided until node and grid are known
            return not (await shell("dry-run", "--strategy", "co2opt", "--apply")).status

        await until(applied)
        await active(stub, 2)
        async with asyncio.timeout(45):
            while lines[-1]["version"] != "2" or lines[-1]["state"] != "PLAN_STATE_ACTIVE":
                lines.append(json.loads(await watching.stdout.readline()))
    watching.send_signal(signal.SIGINT)

    assert await watching.wait() == 130
    shown = [(line["version"], line["state"]) for line in lines]
    assert shown[0] == ("1", "PLAN_STATE_ACTIVE")
    assert len(shown) == len(set(shown)), "each state of a plan once"
