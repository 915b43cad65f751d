"""TLS between services: who is let in, by what name, and how certificates are renewed."""

import asyncio
import json
import socket
import ssl
import time
import warnings
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceStub
from services.kit.config import Access as Settings
from services.kit.config import Tls, Tokens
from services.kit.config.access import ExpectedServer
from services.kit.errors import FailedPrecondition, Unauthenticated
from services.kit.net import free_port
from services.kit.rpc import Access, Transport, caller, certificates, dial, serving
from services.kit.rpc.certificates import server_name
from services.kit.rpc.client_identity import client_of
from services.router.adapters.tokens import TokenVerifier
from services.router.adapters.worker_stream import links
from tests.support.certificates import issued
from tests.support.scripted_service import ADDRESS, scripted

ROLES = Access(Settings().principals)


async def nothing(_context: Any) -> list[str]:
    return []


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """Certificates of carbon, of an operator, of a gateway, and of clients."""
    folder = tmp_path_factory.mktemp("pki")
    return issued(folder, "carbon", "operator/ada", "gateway/edge", "client/app", "client/batch")


async def test_mutual_tls_lets_in_who_shows_a_certificate(tls: Tls) -> None:
    async with (
        scripted(nothing, tls=tls.of("carbon")) as (_, _, server),
        dial(f"127.0.0.1:{server.port}", tls.of("client", "app")) as channel,
    ):
        stub = CarbonServiceStub(channel)
        reply = await stub.GetIntensity(pb.GetIntensityRequest(zone="Z"), timeout=20)

    assert reply.intensity.zone == "Z"


async def test_a_server_that_stops_leaves_no_client_that_does_not_say_goodbye(tls: Tls) -> None:
    """Asyncio's TLS waits for half a minute for its goodbye, and closed twice for ever."""
    mine = tls.of("client", "app")
    context = ssl.create_default_context(cafile=str(mine.ca_file))
    context.load_cert_chain(str(mine.certificate_file), str(mine.key_file))
    context.set_alpn_protocols(["h2"])
    with socket.socket() as raw:
        raw.settimeout(10.0)
        async with scripted(nothing, tls=tls.of("carbon"), transport="own") as (_, _, server):
            raw.connect(("127.0.0.1", server.port))
            secure = context.wrap_socket(
                raw, server_hostname="127.0.0.1", do_handshake_on_connect=False
            )
            await asyncio.to_thread(secure.do_handshake)
            await asyncio.to_thread(secure.send, b"GET / HTTP/1.1\r\n\r\n")
            await asyncio.to_thread(secure.recv, 1)  # the alert arrives, and the server closes
        with socket.socket(fileno=secure.detach()) as bare:
            bare.settimeout(10.0)
            while await asyncio.to_thread(bare.recv, 2**16):
                pass


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """Certificates of agents without addresses of their own: a name that all of them share."""
    return issued(tmp_path_factory.mktemp("pods"), "agent", "worker", "planner", hosts=("agents",))


@pytest.mark.parametrize(
    ("expected", "code"),
    [("agents", grpc.StatusCode.OK), ("", grpc.StatusCode.UNAVAILABLE)],
    ids=["its name", "its address"],
)
async def test_a_peer_that_is_dialled_by_ip_address_may_show_a_name(
    pods: Tls, expected: str, code: grpc.StatusCode
) -> None:
    named = pods.of("planner").model_copy(update={"ip_server_name": expected})
    async with (
        scripted(nothing, tls=pods.of("agent")) as (_, _, server),
        dial(f"127.0.0.1:{server.port}", named) as channel,
    ):
        call = CarbonServiceStub(channel).ListZones(pb.ListZonesRequest(), timeout=20)
        assert await call.code() is code


@pytest.mark.parametrize("expected", ["agents", ""], ids=["its name", "its address"])
async def test_so_may_a_worker_that_a_router_dials(pods: Tls, expected: str) -> None:
    """By our own transport; what the worker says then does not matter here."""
    named = pods.of("planner").model_copy(update={"ip_server_name": expected})
    opened = links(named, dead_after_s=5.0, message_bytes=1024)
    async with serving(ADDRESS, lambda _: None, (), tls=pods.of("worker"), transport="own") as at:
        if expected:
            link = await opened(f"127.0.0.1:{at.port}", lambda *_: None, lambda: None)
            link.abort("seen")
            return
        with pytest.raises(ssl.SSLCertVerificationError):
            await opened(f"127.0.0.1:{at.port}", lambda *_: None, lambda: None)


@pytest.mark.parametrize("bearer", ["worker/node-a", "client/app", "agent/node-a"])
async def test_a_router_sends_requests_to_workers_only(tmp_path: Path, bearer: str) -> None:
    """Another certificate of the authority with the worker's host ends the handshake."""
    tls = issued(tmp_path, "router", bearer)
    opened = links(
        tls.of("router"),
        expected=ExpectedServer("worker", Settings().principals["worker"]),
        dead_after_s=5.0,
        message_bytes=1024,
    )
    role, _, name = bearer.partition("/")
    shown = tls.of(role, name)
    async with serving(ADDRESS, lambda _: None, (), tls=shown, transport="own") as at:
        if role == "worker":
            link = await opened(f"127.0.0.1:{at.port}", lambda *_: None, lambda: None)
            link.abort("seen")
            return
        with pytest.raises(
            ssl.SSLCertVerificationError, match=f"{bearer}, not worker: access.roles"
        ):
            await opened(f"127.0.0.1:{at.port}", lambda *_: None, lambda: None)


def test_a_peer_that_is_dialled_by_name_must_show_that_name() -> None:
    tls = Tls(require_client_certificate=False, ip_server_name="agents")

    assert server_name(tls, "planner:8462") == "planner"
    assert server_name(tls, "[fd00::7]:8463") == server_name(tls, "10.0.0.7:8463") == "agents"


@pytest.mark.parametrize("shown", ["nothing", "plaintext"])
async def test_mutual_tls_keeps_out_who_does_not(tls: Tls, shown: str) -> None:
    anonymous = Tls(ca_file=tls.of("carbon").ca_file)
    async with (
        scripted(nothing, tls=tls.of("carbon")) as (_, _, server),
        dial(f"127.0.0.1:{server.port}", anonymous if shown == "nothing" else None) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await CarbonServiceStub(channel).ListZones(pb.ListZonesRequest(), timeout=20)

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("bearer", "code"),
    [("operator", grpc.StatusCode.OK), ("client", grpc.StatusCode.PERMISSION_DENIED)],
)
async def test_a_certificate_is_let_in_by_its_role(
    tls: Tls, bearer: str, code: grpc.StatusCode
) -> None:
    name = {"operator": "ada", "client": "app"}[bearer]
    ran: list[Any] = []

    async def script(context: Any) -> list[str]:
        ran.append(context)
        return []

    async with (
        scripted(script, tls=tls.of("carbon"), access=ROLES) as (_, _, server),
        dial(f"127.0.0.1:{server.port}", tls.of(bearer, name)) as channel,
    ):
        call = CarbonServiceStub(channel).ListZones(pb.ListZonesRequest(), timeout=20)
        assert await call.code() is code
        assert len(ran) == (code is grpc.StatusCode.OK)
        if not ran:
            assert f"spiffe://cinquefoil/client/{name} may not call" in await call.details()


async def test_a_server_without_its_key_does_not_start(tls: Tls) -> None:
    half = Tls(certificate_file=tls.of("carbon").certificate_file, require_client_certificate=False)
    with pytest.raises(FailedPrecondition, match="needs certificate_file and key_file"):
        async with serving(ADDRESS, lambda _: None, (), tls=half, grace_s=0):
            pass


async def test_a_key_of_another_certificate_is_refused_by_name(tls: Tls) -> None:
    mixed = tls.of("carbon").model_copy(update={"key_file": tls.of("client", "app").key_file})
    with pytest.raises(FailedPrecondition, match="are no pair"):
        async with serving(ADDRESS, lambda _: None, (), tls=mixed, grace_s=0):
            pass


async def test_only_a_gateway_speaks_for_others(tls: Tls) -> None:
    """Any other caller that sends `x-client-id` keeps the identity of its certificate or host."""

    async def who(context: Any) -> list[str]:
        return [client_of(context, caller())]

    named = (("x-client-id", "batch"),)
    everybody = Access(Settings(roles={"viewer": ("*",)}).principals)

    async def said(address: str, shown: Tls | None) -> str:
        async with dial(address, shown) as channel:
            list_zones: Any = CarbonServiceStub(channel).ListZones
            zones = (await list_zones(pb.ListZonesRequest(), metadata=named, timeout=20)).zones
            return str(zones[0])

    async with (
        scripted(who, tls=tls.of("carbon"), access=everybody) as (_, _, server),
        scripted(who) as (_, _, plain),
    ):
        address = f"127.0.0.1:{server.port}"
        found = [
            await said(address, tls.of("gateway", "edge")),
            await said(address, tls.of("client", "app")),
            await said(f"127.0.0.1:{plain.port}", None),
        ]

    assert found == ["id:batch", "spiffe://cinquefoil/client/app", "id:batch"]


@pytest.mark.parametrize("transport", ["own", "grpcio"])
async def test_renewed_certificates_are_used_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: Any
) -> None:
    """Both sides get certificates of another authority; an open stream continues."""
    monkeypatch.setattr(certificates, "CHECK_INTERVAL_S", 0.0)
    first = issued(tmp_path, "carbon", "client/app")
    called, go_on = asyncio.Event(), asyncio.Event()
    names: list[str] = []

    async def script(context: Any) -> list[str]:
        names.append(str(context.auth_context()["x509_pem_cert"][0]))
        if len(names) == 1:
            called.set()
            await go_on.wait()
        return ["done"]

    async with (
        scripted(script, tls=first.of("carbon"), transport=transport) as (_, _, server),
        dial(f"127.0.0.1:{server.port}", first.of("client", "app")) as channel,
    ):
        stub = CarbonServiceStub(channel)
        stream = stub.Watch(pb.WatchRequest(), timeout=30)
        reading = asyncio.create_task(_all(stream))
        await called.wait()
        (tmp_path / "ca.key").unlink()
        issued(tmp_path, "carbon", "client/app")

        await stub.ListZones(pb.ListZonesRequest(), timeout=20, wait_for_ready=True)
        go_on.set()

        assert await reading == ["done"]
        assert names[0] != names[1], "the new call shows the new certificate"


async def _all(stream: Any) -> list[str]:
    return [each.zone async for response in stream for each in response.intensities]


def test_half_replaced_files_change_nothing(tls: Tls, tmp_path: Path) -> None:
    """While one file of the pair is the old one, the pair before stays in use."""
    mine = issued(tmp_path, "carbon").of("carbon")
    files = certificates.CertificateFiles(mine, _Jumping())
    before = files.pair
    assert mine.key_file is not None
    mine.key_file.write_bytes(tls.of("carbon").key_file.read_bytes())  # type: ignore[union-attr]

    assert not files.changed()
    assert files.pair == before
    assert certificates.CertificateFiles(mine).pair == before, (
        "a connection dialed now would be closed for nothing"
    )


def test_a_service_that_starts_in_a_renewal_waits_for_the_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = (issued(tmp_path / name, "carbon").of("carbon") for name in ("mine", "other"))
    assert mine.key_file is not None
    assert other.key_file is not None
    key = mine.key_file
    whole = key.read_bytes()
    key.write_bytes(other.key_file.read_bytes())
    waits: list[float] = []

    def replaced(pause_s: float) -> None:
        waits.append(pause_s)
        key.write_bytes(whole)

    monkeypatch.setattr("services.kit.rpc.certificates.time.sleep", replaced)

    assert certificates.CertificateFiles(mine).pair is not None
    assert len(waits) == 1


class _Jumping:
    """A clock on which every look at a file is due."""

    _now_s = 0.0

    def monotonic(self) -> float:
        self._now_s += 100
        return self._now_s

    def now(self) -> Any:
        raise NotImplementedError

    async def sleep(self, delay_s: float) -> None:
        raise NotImplementedError


# ---- tokens ------------------------------------------------------------------------------------

ISSUER = "https://issuer.example"


@pytest.fixture(scope="module")
def key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def tokens(tmp_path: Path, key: ec.EllipticCurvePrivateKey) -> Tokens:
    """Settings that trust `key`, called k1."""
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [{**public, "kid": "k1", "alg": "ES256"}]}))
    return Tokens(jwks_file=path, issuer=ISSUER, audience="inference")


def token(key: Any, algorithm: str = "ES256", kid: str = "k1", **claims: Any) -> str:
    said = {"sub": "app", "iss": ISSUER, "aud": "inference", "exp": time.time() + 60, **claims}
    said = {name: value for name, value in said.items() if value is not None}
    return jwt.encode(said, key, algorithm, headers={"kid": kid})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"exp": 1}, "expired"),
        ({"exp": None}, "exp"),
        ({"iss": "https://else.example"}, "issuer"),
        ({"aud": "billing"}, "[Aa]udience"),
        ({"sub": None}, "sub"),
        ({"kid": "k2"}, "which the JWKS lacks"),
    ],
)
def test_a_token_that_is_not_valid_is_refused_with_the_reason(
    tokens: Tokens, key: ec.EllipticCurvePrivateKey, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(Unauthenticated, match=message):
        TokenVerifier(tokens)(token(key, **wrong))


def test_a_token_signed_otherwise_is_refused(
    tokens: Tokens, key: ec.EllipticCurvePrivateKey
) -> None:
    """By another key, by a shared secret, by nothing, or cut short."""
    other = ec.generate_private_key(ec.SECP256R1())
    forged = [
        token(other),
        token("k" * 32, "HS256"),
        token(None, "none"),
        token(key)[:-4],
        "x" * 9000,
        "",
    ]
    verify = TokenVerifier(tokens)
    for each in forged:
        with pytest.raises(Unauthenticated, match="token: "):
            verify(each)


def jwk(key: Any, **more: str) -> dict[str, Any]:
    """Return the public part of a key as a JWK."""
    form = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return {**form.to_jwk(key.public_key(), as_dict=True), **more}


def weak_keys() -> dict[str, tuple[dict[str, Any], str]]:
    """Return keys that sign nothing that counts, by kid, and the reason."""
    short = jwk(rsa.generate_private_key(65_537, 1024), alg="RS256")  # noqa: S505 - refused
    almost = jwk(rsa.generate_private_key(65_537, 2040), alg="PS512")  # noqa: S505 - refused
    koblitz = jwk(ec.generate_private_key(ec.SECP256K1()), alg="ES256K")
    secret = {"kty": "oct", "k": "a" * 43, "alg": "HS256"}
    return {
        "short": (short, "2048 bits or more, has 1024"),
        "almost": (almost, "2048 bits or more, has 2040"),
        "koblitz": (koblitz, "is of ES256K"),
        "secret": (secret, "is of HS256"),
        "none": ({**secret, "alg": "none"}, "cannot be read as a key of none"),
    }


def test_weak_keys_and_shared_secrets_do_not_count(
    tokens: Tokens, key: ec.EllipticCurvePrivateKey
) -> None:
    """Alone they are refused by name at the start; beside a good key theirs are no tokens."""
    weak = weak_keys()
    for kid, (entry, why) in weak.items():
        tokens.jwks_file.write_text(json.dumps({"keys": [{**entry, "kid": kid}]}))
        with pytest.raises(FailedPrecondition, match=f"'{kid}'.*{why}"):
            TokenVerifier(tokens)
    signing = rsa.generate_private_key(65_537, 1024)  # noqa: S505 - refused
    keys = [{**entry, "kid": kid} for kid, (entry, _) in weak.items()]
    keys += [jwk(signing, kid="mine", alg="RS256"), jwk(key, kid="k1", alg="ES256")]
    tokens.jwks_file.write_text(json.dumps({"keys": keys}))
    verify = TokenVerifier(tokens)

    assert verify(token(key)).subject == "app"
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(Unauthenticated, match="which the JWKS lacks"),
    ):
        verify(token(signing, "RS256", "mine"))


async def test_a_token_opens_its_own_port(
    tls: Tls, tokens: Tokens, key: ec.EllipticCurvePrivateKey
) -> None:
    """There no certificate is needed; without a token no caller is let in."""
    everybody = Settings(roles={"viewer": ("token:app",)}, tokens=tokens)
    access = Access(everybody.principals, TokenVerifier(tokens))
    port = free_port()
    async with (
        scripted(nothing, tls=tls.of("carbon"), access=access, token_address=f"127.0.0.1:{port}"),
        dial(
            f"127.0.0.1:{port}",
            Tls(ca_file=tls.of("carbon").ca_file),
        ) as channel,
    ):
        list_zones: Any = CarbonServiceStub(channel).ListZones
        codes = []
        for shown in (token(key), token(key, sub="other"), ""):
            metadata = (("authorization", f"Bearer {shown}"),) if shown else ()
            call = list_zones(pb.ListZonesRequest(), metadata=metadata, timeout=20)
            codes.append((await call.code()).name)

    assert codes == ["OK", "PERMISSION_DENIED", "UNAUTHENTICATED"]


@pytest.mark.parametrize("transport", ["own", "grpcio"])
@pytest.mark.parametrize("method", ["Watch", "ListZones"])
async def test_a_call_ends_with_the_token_that_let_it_in(
    tokens: Tokens, key: ec.EllipticCurvePrivateKey, transport: Transport, method: str
) -> None:
    """A stream, or an answer that takes its time, does not outlive the caller's permission."""
    everybody = Settings(roles={"viewer": ("token:app",)}, tokens=tokens)
    access, ends_s = Access(everybody.principals, TokenVerifier(tokens)), time.time() + 3

    async def script(_context: Any) -> list[str]:
        await asyncio.sleep(30)
        return ["Z"]

    async with scripted(script, access=access, transport=transport) as (stub, _, _):
        shown = (("authorization", f"Bearer {token(key, exp=ends_s)}"),)
        one: Any = stub.ListZones(pb.ListZonesRequest(), metadata=shown)
        call = one if method == "ListZones" else stub.Watch(pb.WatchRequest(), metadata=shown)
        code, details = await call.code(), await call.details()

    assert code is grpc.StatusCode.UNAUTHENTICATED
    assert "expired" in details
    assert ends_s - 1.0 <= time.time() < ends_s + 5.0
