"""Providers beyond a proxy of the environment, as most companies have one."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import stamina
from pydantic import TypeAdapter

from services.carbon.core.sources.feed import SourceFailed
from services.carbon.sources.live.client import http_client
from services.carbon.sources.live.factory import provider
from services.carbon.sources.live.provider import HttpProvider
from services.kit import proxies
from services.kit.config import carbon_sources as settings
from tests.support.carbon.provider_answers import NESO, NOW
from tests.support.fake_provider import Answer, ProviderServer, serving_http

OUTSIDE = "http://neso.example"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No proxy of this machine's, and no waits between retries."""
    for name in (*proxies.VARIABLES, "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    with stamina.set_testing(True, attempts=3):
        yield


@pytest.fixture
async def server() -> AsyncIterator[ProviderServer]:
    """A server that answers as NESO does, itself or as a proxy: its requests have whole URLs."""
    async with serving_http(NESO.answer) as found:
        yield found


def neso(client: httpx.AsyncClient, url: str) -> HttpProvider[Any]:
    source = TypeAdapter[Any](settings.Source).validate_python({"kind": "neso", "url": url})
    found = provider(source, client)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY", "all_proxy"])
async def test_requests_leave_through_the_proxy(
    name: str, server: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host has no address; the proxy knows it."""
    monkeypatch.setenv(name, server.url)
    async with http_client() as client:
        reading = await neso(client, OUTSIDE).read(NOW, None)

    assert reading.samples
    assert {request.headers["host"] for request in server.requests} == {"neso.example"}


@pytest.mark.parametrize("value", ["http://127.0.0.1:1", "socks5://127.0.0.1:1", "nonsense://x"])
async def test_this_machine_is_called_directly(
    value: str, server: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that is dead, or none that we can use, is not in the way."""
    monkeypatch.setenv("http_proxy", value)
    monkeypatch.setenv("all_proxy", value)
    async with http_client() as client:
        assert (await neso(client, server.url).read(NOW, None)).samples


async def test_a_host_of_no_proxy_is_called_directly(
    server: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy gets no request."""
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "neso.invalid")
    async with http_client() as client:
        with pytest.raises(SourceFailed) as caught:
            await neso(client, "http://neso.invalid").read(NOW, None)

    assert "proxy" not in str(caught.value)
    assert server.requests == []


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("http://ada:s3cr3t@127.0.0.1:1", "through the proxy of http_proxy"),
        ("socks5://ada:s3cr3t@127.0.0.1:1", "http_proxy.*cannot be used"),
        ("nonsense://127.0.0.1:1", "http_proxy.*cannot be used"),
    ],
)
async def test_a_proxy_that_does_not_work_is_named(
    value: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure names the variable, and not the proxy's password."""
    monkeypatch.setenv("http_proxy", value)
    async with http_client() as client:
        with pytest.raises(SourceFailed, match=why) as caught:
            await neso(client, OUTSIDE).read(NOW, None)

    assert caught.value.kind == "unreachable"
    assert "s3cr3t" not in str(caught.value)


async def test_a_refusal_of_the_proxy_names_it(
    server: ProviderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """407 is the proxy's, not the provider's."""
    monkeypatch.setenv("http_proxy", server.url)
    server.route = lambda _: Answer("who are you", status=407)
    async with http_client() as client:
        with pytest.raises(SourceFailed, match=r"HTTP 407: who are you \(through the proxy of"):
            await neso(client, OUTSIDE).read(NOW, None)
