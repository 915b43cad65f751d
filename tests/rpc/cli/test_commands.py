"""The commands against real gRPC services; some run as their users run them, as processes."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cinquefoil.planner.v1 import plan_pb2, planner_pb2, planner_pb2_grpc
from services.kit.config import Access as Settings
from services.kit.config.loader import load
from services.kit.net import free_port
from services.kit.rpc import Access, serving
from services.local.pki import settings
from tests.support.certificates import DOMAIN, issued
from tests.support.cli.fake_services import PLAN, cinquefoil, cinquefoil_process, suite
from tests.support.paths import ROOT


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Where the deployment file goes."""
    return tmp_path / "cinquefoil.yaml"


async def test_status_shows_zones_gpus_models_and_the_account(config: Path) -> None:
    async with suite(config):
        ended = await cinquefoil_process("status", "--config", config)
    assert (ended.status, ended.err) == (0, "")
    for said in ("US-CAL", "180.5", "0.87", "3g.20gb@4", "digits/svc", "4x2", "112 W"):
        assert said in ended.out
    for said in ("100 %", "1/2", "41/87/200", "1.5 kJ", "75 mgCO2e", "plan 7"):
        assert said in ended.out


async def test_status_as_json_is_one_object_without_problems(config: Path) -> None:
    async with suite(config):
        ended = await cinquefoil("status", "--json", "-c", config)
    status = json.loads(ended.out)
    assert status["problems"] == []
    assert status["plan"]["version"] == 7
    assert [piece["variant"] for piece in status["gpus"][0]["slices"]] == ["", "svc"]
    assert status["models"][0]["variants"] == [
        {"variant": "svc", "share": 1.0, "instances": 2, "connected": 1}
    ]


async def test_status_shows_the_rest_where_one_service_is_away(config: Path) -> None:
    async with suite(config, without="router"):
        ended = await cinquefoil("status", "-c", config)
    assert ended.status == 1
    assert "US-CAL" in ended.out
    assert "3g.20gb@4" in ended.out
    assert "router at 127.0.0.1:" in ended.out
    assert "does not answer: nothing listens there yet. It is starting" in ended.out


async def test_watch_repeats_until_ctrl_c(config: Path) -> None:
    async with suite(config):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.cli", "status", "--watch", "--json"),
            *("--interval", "0.1", "-c", str(config)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        lines = [json.loads(await process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert [line["plan"]["version"] for line in lines] == [7, 7, 7]
    assert process.returncode == 130


async def test_plan_list_says_why_each_was_made(config: Path) -> None:
    async with suite(config):
        ended = await cinquefoil("plan", "list", "-c", config)
        listed = await cinquefoil("plan", "list", "--json", "-c", config)
    assert ended.status == 0
    assert "carbon: US-CAL 210.0 -> 180.5" in ended.out
    assert [plan["reason"] for plan in json.loads(listed.out)] == [
        "carbon: US-CAL 210.0 -> 180.5 gCO2e/kWh (-14.0 %)"
    ]


async def test_plan_show_sets_what_was_expected_beside_what_was_seen(config: Path) -> None:
    async with suite(config):
        ended = await cinquefoil("plan", "show", "7", "-c", config)
    assert ended.status == 0
    for said in ("115 W", "120 W", "21.6 gCO2e", "90 ms", "80 ms", "0.0 %", "1.2 kJ"):
        assert said in ended.out
    assert ["requests", "600"] in [line.split() for line in ended.out.splitlines()]
    assert "digits/svc" in ended.out


async def test_a_plan_that_is_not_there_is_one_sentence(config: Path) -> None:
    async with suite(config):
        ended = await cinquefoil("plan", "show", "99", "-c", config)
    assert ended.status == 1
    assert "no plan has version 99; the newest is 7 (NOT_FOUND)" in ended.err
    assert "Traceback" not in ended.err


async def test_infer_sends_a_held_out_digit_and_prints_the_receipt(config: Path) -> None:
    async with suite(config):
        ended = await cinquefoil("infer", "digits", "--image", "3", "-c", config)
    assert ended.status == 0
    for said in (
        "label: ",
        "truth: ",
        "by svc (accuracy 0.9917)",
        "1.25 J ± 25 % (model)",
        "62.7 µgCO2e",
    ):
        assert said in ended.out


async def test_infer_sends_an_array_from_a_file(config: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "two.npy", np.stack([np.full(64, 1.0), np.full(64, 0.5)]))
    async with suite(config):
        ended = await cinquefoil(
            "infer", "digits", "--input", tmp_path / "two.npy", "--json", "-c", config
        )
    answer = json.loads(ended.out)
    assert answer["outputs"] == {"label": [4, 2]}, "the sums 64 and 32, modulo 10"
    assert answer["parameters"]["energy_method"] == "model"


async def test_infer_passes_on_what_the_server_says(config: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "bad.npy", np.zeros((1, 63)))
    (tmp_path / "text.npy").write_text("no array")
    async with suite(config):
        unknown = await cinquefoil("infer", "cats", "-c", config)
        shape = await cinquefoil("infer", "digits", "--input", tmp_path / "bad.npy", "-c", config)
        text = await cinquefoil("infer", "digits", "--input", tmp_path / "text.npy", "-c", config)
    assert "no model 'cats'; there are: digits (NOT_FOUND)" in unknown.err
    assert "inputs[0].shape: must be [-1, 64], got [1, 63]" in shape.err
    assert "text.npy is not a .npy array" in text.err
    assert {unknown.status, shape.status, text.status} == {1}
    assert not any("Traceback" in ended.err for ended in (unknown, shape, text))


async def test_health_distinguishes_a_serving_service_from_one_that_is_away(config: Path) -> None:
    async with suite(config, without="router"):
        serving = await cinquefoil("health", "planner", "-c", config)
        away = await cinquefoil("health", "router", "-c", config)
        unknown = await cinquefoil("health", "tarot", "-c", config)
    assert (serving.status, serving.out) == (0, "serving\n")
    assert away.status == 1
    assert "router at 127.0.0.1:" in away.err
    assert unknown.status == 1
    assert "no service 'tarot'; this deployment has carbon, planner, node-0, router" in unknown.err


async def test_health_with_the_service_s_own_certificate_needs_no_other(
    config: Path, tmp_path: Path
) -> None:
    """A container that has its service's key only can check its health."""
    tls = issued(tmp_path / "pki", "carbon")
    async with suite(config, without="carbon"):
        with config.open("a") as file:
            file.write(settings(tmp_path / "pki", DOMAIN))
        address, access = load(config).carbon.listen, Access(Settings().principals)
        async with serving(
            address, lambda _: None, (), tls=tls.of("carbon"), access=access, grace_s=0
        ):
            own = await cinquefoil("health", "--own", "carbon", "-c", config)
            other = await cinquefoil("health", "carbon", "-c", config)
    assert (own.status, own.out) == (0, "serving\n")
    assert other.status == 1
    assert "operator/tls.crt: No such file" in other.err.replace("\n", "")


@pytest.mark.parametrize(
    ("expired", "sentence"),
    [
        ("carbon", "shows a certificate that is not trusted here: certificate has expired"),
        ("operator", "it does not trust the certificate of this command (expired, or"),
    ],
)
async def test_an_expired_certificate_is_named_as_the_reason(
    config: Path, tmp_path: Path, expired: str, sentence: str
) -> None:
    """Not "is it running?": whose certificate it is, and where to look further."""
    tls = issued(tmp_path / "pki", "carbon", "operator")
    issued(tmp_path / "pki", expired, days=-0.001)
    async with suite(config, without="carbon"):
        with config.open("a") as file:
            file.write(settings(tmp_path / "pki", DOMAIN))
        address, access = load(config).carbon.listen, Access(Settings().principals)
        async with serving(
            address, lambda _: None, (), tls=tls.of("carbon"), access=access, grace_s=0
        ):
            ended = await cinquefoil("health", "carbon", "-c", config)

    assert ended.status == 1
    assert sentence in " ".join(ended.err.split())
    assert "`cinquefoil config check`" in " ".join(ended.err.split())


async def test_nothing_running_is_one_sentence(config: Path) -> None:
    async with suite(config):
        pass
    ended = await cinquefoil_process("plan", "list", "-c", config)
    assert ended.status == 1
    assert ended.err.startswith("planner at 127.0.0.1:")
    assert "`cinquefoil up` starts the deployment" in ended.err
    assert ended.err.count("\n") == 1


async def test_a_missing_deployment_file_ends_with_status_2(tmp_path: Path) -> None:
    ended = await cinquefoil("status", "-c", tmp_path / "none.yaml")
    assert ended.status == 2
    assert "none.yaml: file: cannot be read: No such file or directory" in ended.err


class RestartingPlanner(planner_pb2_grpc.PlannerServiceServicer):
    """Says one plan per stream and ends the stream, as a planner that drains does."""

    def __init__(self) -> None:
        self.after: list[int | None] = []

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.after.append(request.after_version if request.HasField("after_version") else None)
        for version in range(7, 7 + len(self.after)):
            plan = plan_pb2.Plan()
            plan.CopyFrom(PLAN)
            plan.version = version
            yield planner_pb2.WatchResponse(plan=plan)


async def test_the_subscriber_example_needs_only_the_protos_and_reconnects() -> None:
    """The example runs where neither `services` nor `inference` can be imported."""
    made: Any = RestartingPlanner  # the other calls are UNIMPLEMENTED
    servicer = made()
    code = (
        "import runpy, sys; sys.modules.update(services=None, inference=None);"
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    ).replace("sys.argv[1]", f"{str(ROOT / 'examples/watch_plans.py')!r}")

    def register(server: Any) -> None:
        planner_pb2_grpc.add_PlannerServiceServicer_to_server(servicer, server)

    address = f"127.0.0.1:{free_port()}"
    async with serving(address, register, ("cinquefoil.planner.v1.PlannerService",)):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-c", code, address), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async with asyncio.timeout(45):
            lines = [(await process.stdout.readline()).decode().rstrip() for _ in range(4)]
        process.send_signal(signal.SIGINT)
        status = await process.wait()

    reason = "(exact): carbon: US-CAL 210.0 -> 180.5 gCO2e/kWh (-14.0 %)"
    segment = "  100.0% svc on 3g.20gb"
    assert lines == [f"plan 7 {reason}", segment, f"plan 8 {reason}", segment]
    assert servicer.after[:2] == [None, 7]
    assert status == 0


async def test_the_triton_example_gets_an_answer(config: Path) -> None:
    """An unmodified tritonclient, in a process of its own."""
    async with suite(config):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(ROOT / "examples/infer.py"), load(config).router.dial),
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
    assert out.decode().strip() == "[0]", "the sum of a black image"
