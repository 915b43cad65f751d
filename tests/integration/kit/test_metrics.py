"""The metrics endpoint serves while its block runs, and lets go at once."""

import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter

from services.kit.config import Access as Settings
from services.kit.errors import FailedPrecondition
from services.kit.process import metrics
from services.kit.process.metrics import exposed
from services.kit.rpc import Access, certificates
from tests.support.certificates import issued


def test_the_page_is_served_while_the_block_runs() -> None:
    registry = CollectorRegistry()
    Counter("seen", "Times.", registry=registry).inc(3)
    with (
        exposed("127.0.0.1:0", registry=registry) as port,
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply,
    ):
        assert b"seen_total 3.0" in reply.read()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_a_collector_is_the_registrys_while_the_block_runs_and_again_later() -> None:
    registry = CollectorRegistry()
    seen = Counter("seen", "Times.", registry=None)
    for _ in range(2):
        with exposed("127.0.0.1:0", [seen], registry):
            assert list(registry.collect())
        assert not list(registry.collect())


async def test_leaving_does_not_hold_the_loop() -> None:
    """The detector of tests/conftest.py fails this test where it waits for the server's poll."""
    with exposed("127.0.0.1:0", registry=CollectorRegistry()):
        pass


def test_livez_is_well_while_readyz_says_whether_requests_are_taken() -> None:
    """A process that waits for others is not to be killed."""
    serves = False

    def status(page: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=5) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code

    registry = CollectorRegistry()
    with exposed("127.0.0.1:0", registry=registry, ready=lambda: serves) as port:
        before = [status(page) for page in ("livez", "readyz", "metrics")]
        serves = True
        after = status("readyz")

    assert before == [200, 503, 200]
    assert after == 200


def test_without_an_address_nothing_is_served() -> None:
    with exposed("") as port:
        assert port == 0


def test_a_port_in_use_is_an_error() -> None:
    """The sentence says what cannot be served, and where."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = pytest.raises(
            FailedPrecondition, match=f"metrics at {address}: Address already in use"
        )
        with said, exposed(address):
            pass


def test_silent_connections_take_a_bounded_number_of_threads_and_then_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """313 of them once took 313 threads; more than the limit are closed, the rest in their time."""
    monkeypatch.setattr(metrics._Handler, "timeout", 0.2)
    with exposed("127.0.0.1:0", registry=CollectorRegistry()) as port:
        silent = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(64)]
        try:
            assert all(connection.recv(1) == b"" for connection in silent), "every one is closed"
        finally:
            for connection in silent:
                connection.close()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
            assert reply.status == 200


@pytest.mark.parametrize(
    ("bearer", "name", "sees"), [("viewer", "prometheus", True), ("client", "app", False)]
)
def test_with_certificates_only_those_who_may_see_get_the_page(
    tmp_path: Path, bearer: str, name: str, sees: bool
) -> None:
    tls = issued(tmp_path, "router", f"{bearer}/{name}")
    mine = tls.of(bearer, name)
    context = ssl.create_default_context(cafile=mine.ca_file)
    context.load_cert_chain(str(mine.certificate_file), mine.key_file)
    access = Access(Settings().principals)
    with exposed(
        "127.0.0.1:0", registry=CollectorRegistry(), tls=tls.of("router"), access=access
    ) as port:
        url = f"https://127.0.0.1:{port}/metrics"
        if sees:
            with urllib.request.urlopen(url, timeout=5, context=context) as reply:
                assert reply.status == 200
        else:
            with pytest.raises(OSError, match=r"closed|EOF|reset"):
                urllib.request.urlopen(url, timeout=5, context=context)
        with pytest.raises(OSError, match=r"certificate|EOF|reset|alert"):
            urllib.request.urlopen(
                url, timeout=5, context=ssl.create_default_context(cafile=mine.ca_file)
            )


def test_a_renewed_certificate_and_authority_are_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are issued by another authority; the page then trusts that one, too."""
    monkeypatch.setattr(certificates, "CHECK_INTERVAL_S", 0.0)
    tls = issued(tmp_path, "router", "viewer/prometheus")
    mine = tls.of("viewer", "prometheus")
    with exposed("127.0.0.1:0", registry=CollectorRegistry(), tls=tls.of("router")) as port:
        (tmp_path / "ca.key").unlink()
        issued(tmp_path, "router", "viewer/prometheus")
        context = ssl.create_default_context(cafile=mine.ca_file)
        context.load_cert_chain(str(mine.certificate_file), mine.key_file)
        url = f"https://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(url, timeout=5, context=context) as reply:
            assert reply.status == 200
