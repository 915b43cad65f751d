"""A service's connection to a real broker, seen by a foreign client."""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.kit.clock import RealClock
from services.kit.config import ClientTls, Mqtt
from services.kit.mqtt import BrokerConnection, Message, Refused
from tests.support.mosquitto import Broker, brokering, needed

TOPIC = "cinquefoil/carbon/DE"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with brokering(Broker(tmp_path)) as running:
        yield running


@asynccontextmanager
async def linked(link: BrokerConnection) -> AsyncIterator[asyncio.Task[None]]:
    """Keep a link connected while the block runs."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(link.run(), name="link")
        try:
            yield task
        finally:
            task.cancel()


def link_to(broker: Broker, service: str = "carbon", **settings: Any) -> BrokerConnection:
    return BrokerConnection(Mqtt(broker=broker.address, **settings), service, RealClock())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(45):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.01)


async def status(broker: Broker, *, online: bool) -> None:
    """Wait until the retained status says that the service is online, or not."""
    async with asyncio.timeout(45), broker.subscribed("cinquefoil/status/carbon") as lines:
        async for line in lines:
            if json.loads(line.split(b" ", 2)[2])["online"] is online:
                return


async def test_what_is_retained_reaches_who_subscribes_later(broker: Broker) -> None:
    link = link_to(broker)
    link.retain(TOPIC, {"intensity": 300})

    async with linked(link):
        assert json.loads(await broker.retained(TOPIC)) == {"schema": 1, "intensity": 300}


async def test_a_broker_that_dies_and_forgets_gets_everything_again(broker: Broker) -> None:
    link = link_to(broker)
    link.retain(TOPIC, {"intensity": 300})
    link.retain("cinquefoil/carbon/FR", {"intensity": 30})
    async with linked(link):
        await broker.retained(TOPIC)
        broker.kill()
        await until(lambda: not link.connected)
        link.retain(TOPIC, {"intensity": 301})  # published while no broker runs
        link.retain(TOPIC, {"intensity": 302})
        await broker.start()

        assert json.loads(await broker.retained(TOPIC))["intensity"] == 302
        assert json.loads(await broker.retained("cinquefoil/carbon/FR"))["intensity"] == 30
        await status(broker, online=True)


async def test_a_link_waits_for_a_broker_that_is_not_there_yet(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    link = link_to(broker)
    link.retain(TOPIC, {"intensity": 300})
    with capture_logs() as logs:
        async with linked(link):
            await asyncio.sleep(0.3)
            async with brokering(broker):
                await broker.retained(TOPIC)
    troubles = [log for log in logs if log["log_level"] == "warning"]

    assert len(troubles) == 1, "the same trouble is logged once, however often it is met"


async def test_who_leaves_in_peace_says_so(broker: Broker) -> None:
    async with linked(link_to(broker)):
        await status(broker, online=True)

    await status(broker, online=False)


async def test_the_broker_publishes_the_will_of_a_client_that_died(broker: Broker) -> None:
    """The last will: the connection breaks without a word, as when the machine burns."""
    script = (
        "import asyncio, sys; from services.kit.clock import RealClock;"
        "from services.kit.config import Mqtt; from services.kit.mqtt import BrokerConnection;"
        "asyncio.run(BrokerConnection(Mqtt(broker=sys.argv[1]), 'carbon', RealClock()).run())"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, broker.address)
    await status(broker, online=True)
    process.kill()
    await process.wait()

    await status(broker, online=False)


async def test_messages_reach_their_listeners_with_how_they_came(broker: Broker) -> None:
    heard: list[Message] = []
    await broker.publish("meters/a", "1", retain=True)
    link = link_to(broker)
    link.subscribe("meters/a", heard.append)
    async with linked(link):
        await until(lambda: len(heard) == 1)
        await broker.publish("meters/a", "2")
        await until(lambda: len(heard) == 2)

    assert heard == [Message(b"1", retained=True), Message(b"2", retained=False)]


async def test_a_refused_message_is_logged_once_and_ends_nothing(broker: Broker) -> None:
    heard: list[bytes] = []

    def take(message: Message) -> None:
        heard.append(message.payload)
        if message.payload != b"good":
            raise Refused("not good")

    link = link_to(broker)
    link.subscribe("signal", take)
    with capture_logs() as logs:
        async with linked(link):
            await until(lambda: link.connected)
            for payload in ("bad", "worse", "good"):
                await broker.publish("signal", payload)
            await until(lambda: b"good" in heard)

    assert heard == [b"bad", b"worse", b"good"]
    assert [log["why"] for log in logs if log["log_level"] == "warning"] == ["not good"]


async def test_a_message_beyond_the_bound_never_reaches_the_service(broker: Broker) -> None:
    heard: list[bytes] = []
    link = link_to(broker)
    link.subscribe("signal", lambda message: heard.append(message.payload))
    async with linked(link):
        await until(lambda: link.connected)
        await broker.publish("signal", b"9" * 1_000_000)
        await broker.publish("signal", "1")
        await until(lambda: bool(heard))

    assert heard == [b"1"]


# ---- who may connect ---------------------------------------------------------------------------


async def test_a_broker_that_wants_a_password_gets_it_from_its_file(tmp_path: Path) -> None:
    async with brokering(_with_password(tmp_path, "s3cret")) as broker:
        (tmp_path / "mine").write_text("s3cret\n")
        link = link_to(broker, username="cinquefoil", password_file=tmp_path / "mine")
        link.retain(TOPIC, {"intensity": 300})
        async with linked(link):
            await broker.retained(TOPIC)


async def test_a_password_that_is_put_right_is_used_at_the_next_try(tmp_path: Path) -> None:
    """The wrong one is reported without being shown."""
    async with brokering(_with_password(tmp_path, "s3cret")) as broker:
        mine = tmp_path / "mine"
        mine.write_text("guess")
        link = link_to(broker, username="cinquefoil", password_file=mine)
        link.retain(TOPIC, {"intensity": 300})
        with capture_logs() as logs:
            async with linked(link):
                await until(lambda: bool(logs))
                assert not link.connected
                mine.write_text("s3cret")
                await broker.retained(TOPIC)

    assert "authori" in logs[0]["why"].lower()
    assert "guess" not in str(logs)


async def test_tls_is_spoken_to_a_broker_whose_certificate_is_vouched_for(
    tmp_path: Path, certificate: None
) -> None:
    async with brokering(_with_tls(tmp_path)) as broker:
        link = link_to(broker, tls=ClientTls(ca_file=tmp_path / "broker.crt"))
        link.retain(TOPIC, {"intensity": 300})
        async with linked(link):
            assert json.loads(await broker.retained(TOPIC))["intensity"] == 300


# paho leaves the socket of a failed handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_broker_with_an_unknown_certificate_gets_nothing(
    tmp_path: Path, certificate: None
) -> None:
    async with brokering(_with_tls(tmp_path)) as broker:
        link = link_to(broker, tls=ClientTls())
        with capture_logs() as logs:
            async with linked(link):
                await until(lambda: bool(logs))
        assert not link.connected

    assert "certificate verify failed" in logs[0]["why"]


def _with_password(folder: Path, password: str) -> Broker:
    users = folder / "users"
    program = shutil.which("mosquitto_passwd")
    if program is None:
        pytest.skip("not installed: mosquitto_passwd (Debian: mosquitto)")
    subprocess.run((program, "-c", "-b", users, "cinquefoil", password), check=True)
    options = ("allow_anonymous false", f"password_file {users}", "user root")
    return Broker(folder, options, client=("-u", "cinquefoil", "-P", password))


def _with_tls(folder: Path) -> Broker:
    options = (
        "allow_anonymous true",
        "user root",
        f"certfile {folder / 'broker.crt'}",
        f"keyfile {folder / 'broker.key'}",
    )
    client = ("--cafile", str(folder / "broker.crt"))
    return Broker(folder, options, client, host="localhost")


@pytest.fixture
def certificate(tmp_path: Path) -> None:
    """Make a certificate of localhost that vouches for itself; outside of the loop: it is slow."""
    needed()
    if shutil.which("openssl") is None:
        pytest.skip("the openssl program, which makes the certificates, is not installed")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    names = ("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")
    files = ("-keyout", tmp_path / "broker.key", "-out", tmp_path / "broker.crt")
    subprocess.run((*command.split(), *names, *files), check=True, capture_output=True)
