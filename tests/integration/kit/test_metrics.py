"""The metrics endpoint serves while its block runs, and lets go at once."""

import asyncio
import socket
import ssl
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client import REGISTRY, CollectorRegistry, Counter

from services.kit.config import Access as Settings
from services.kit.config import Tls
from services.kit.errors import FailedPrecondition
from services.kit.process import metrics
from services.kit.process.metrics import exposed
from services.kit.rpc import Access, certificates
from tests.support.certificates import issued

ANYWHERE = "127.0.0.1:0"


async def page(port: int, path: str = "metrics", **headers: str) -> httpx.Response:
    async with httpx.AsyncClient() as client:
        return await client.get(f"http://127.0.0.1:{port}/{path}", headers=headers)


def shown(tls: Tls) -> ssl.SSLContext:
    """Return a client's side that shows a certificate."""
    context = ssl.create_default_context(cafile=tls.ca_file)
    context.load_cert_chain(str(tls.certificate_file), tls.key_file)
    return context


async def test_the_page_is_served_while_the_block_runs() -> None:
    """The registry's figures first, and a closed port afterwards."""
    registry = CollectorRegistry()
    Counter("seen", "Times.", registry=registry).inc(3)
    async with exposed(ANYWHERE, registry=registry) as port:
        assert "seen_total 3.0" in (await page(port)).text

    with pytest.raises(httpx.ConnectError):
        await page(port)


async def test_a_scrape_chooses_format_compression_and_names() -> None:
    """Requests as Prometheus sends them: OpenMetrics, gzip, and `name[]` for some series only."""
    registry = CollectorRegistry()
    for name in ("seen", "heard"):
        Counter(name, "Times.", registry=registry).inc()
    async with exposed(ANYWHERE, registry=registry) as port:
        plain = await page(port)
        open_ = await page(port, accept="application/openmetrics-text; version=1.0.0")
        some = await page(port, "metrics?name[]=seen_total")

    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert plain.headers["content-encoding"] in ("gzip", "deflate")
    assert open_.text.endswith("# EOF\n")
    assert "seen_total" in some.text
    assert "heard_total" not in some.text


async def test_a_collector_is_the_registrys_while_the_block_runs_and_again_later() -> None:
    """Entering, leaving and entering again registers it once each time."""
    registry = CollectorRegistry()
    seen = Counter("seen", "Times.", registry=None)
    for _ in range(2):
        async with exposed(ANYWHERE, [seen], registry):
            assert list(registry.collect())
        assert not list(registry.collect())


async def test_livez_is_well_while_readyz_says_whether_requests_are_taken() -> None:
    """A process that waits for others is not to be killed."""
    serves = False
    registry = CollectorRegistry()
    async with exposed(ANYWHERE, registry=registry, ready=lambda: serves) as port:
        before = [(await page(port, path)).status_code for path in ("livez", "readyz", "metrics")]
        serves = True
        after = (await page(port, "readyz")).status_code

    assert before == [200, 503, 200]
    assert after == 200


async def test_without_an_address_nothing_is_served() -> None:
    """An empty setting is no error, and no port."""
    async with exposed("") as port:
        assert port == 0


async def test_a_port_in_use_is_an_error() -> None:
    """The sentence says what cannot be served, and where."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(FailedPrecondition, match=f"metrics at {address}: Address already in"):
            async with exposed(address):
                pass


async def test_silent_connections_are_bounded_and_then_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the limit are closed at once, the rest in their time; then a scrape is answered."""
    monkeypatch.setattr(metrics, "_SILENT_S", 0.2)
    async with exposed(ANYWHERE, registry=CollectorRegistry()) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(64)]
        async with asyncio.timeout(45):
            assert [await reader.read(1) for reader, _ in silent] == [b""] * 64
        for _, writer in silent:
            writer.close()
        assert (await page(port)).status_code == 200


@pytest.mark.parametrize(
    ("bearer", "name", "status"), [("viewer", "prometheus", 200), ("client", "app", 403)]
)
async def test_with_certificates_only_those_who_may_see_get_the_page(
    tmp_path: Path, bearer: str, name: str, status: int
) -> None:
    """By the role of the certificate; without one the handshake fails."""
    tls = issued(tmp_path, "router", f"{bearer}/{name}")
    mine = tls.of(bearer, name)
    unshown = ssl.create_default_context(cafile=mine.ca_file)
    access = Access(Settings().principals)
    async with (
        exposed(
            ANYWHERE, registry=CollectorRegistry(), tls=tls.of("router"), access=access
        ) as port,
        httpx.AsyncClient(verify=shown(mine)) as certified,
        httpx.AsyncClient(verify=unshown) as bare,
    ):
        url = f"https://127.0.0.1:{port}/metrics"
        assert (await certified.get(url)).status_code == status
        with pytest.raises(httpx.TransportError):
            await bare.get(url)


async def test_a_renewed_certificate_and_authority_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are issued by another authority; the page then trusts that one, too."""
    monkeypatch.setattr(certificates, "CHECK_INTERVAL_S", 0.0)
    tls = issued(tmp_path, "router", "viewer/prometheus")
    mine = tls.of("viewer", "prometheus")
    async with exposed(ANYWHERE, registry=CollectorRegistry(), tls=tls.of("router")) as port:
        (tmp_path / "ca.key").unlink()
        issued(tmp_path, "router", "viewer/prometheus")
        async with httpx.AsyncClient(verify=shown(mine)) as client:
            assert (await client.get(f"https://127.0.0.1:{port}/metrics")).status_code == 200


async def test_the_end_of_the_certificate_in_use_is_shown(tmp_path: Path) -> None:
    """As its file has it now: it may have been renewed."""
    tls = issued(tmp_path, "planner").of("planner")
    async with exposed("", tls=tls):
        shown_s = REGISTRY.get_sample_value("cinquefoil_certificate_end_timestamp_seconds")
        await asyncio.to_thread(Path(str(tls.certificate_file)).write_text, "damaged")
        damaged_s = REGISTRY.get_sample_value("cinquefoil_certificate_end_timestamp_seconds")

    assert shown_s is not None
    assert shown_s > time.time()
    assert damaged_s == 0
