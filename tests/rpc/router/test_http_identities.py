"""Authentication over HTTP: certificates, tokens, and paths that are always closed."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import httpx
import jwt
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler
from cryptography.hazmat.primitives.asymmetric import ec

from inference.grpc_service_pb2 import ModelInferRequest
from services.kit.config import Access as Settings
from services.kit.config import Tls, Tokens
from services.kit.errors import FailedPrecondition
from services.kit.http.guard import Guard
from services.kit.http.server import serving_http
from services.kit.rpc import Access, caller
from services.router.adapters.tokens import TokenVerifier
from services.router.edge.calls import Calls
from services.router.edge.inference_protocol import error_form
from services.router.runtime.engine import Engine
from tests.support.certificates import issued

INFER = "/inference.GRPCInferenceService/ModelInfer"
KEY = ec.generate_private_key(ec.SECP256R1())


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    folder = tmp_path_factory.mktemp("pki")
    return issued(folder, "router", "client/app", "planner")


@asynccontextmanager
async def serving(tls: Tls, folder: Path, handler: Handler) -> AsyncIterator[str]:
    """Serve a handler for callers that may infer."""
    jwks = folder / "jwks.json"
    public = jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True)
    jwks.write_text(json.dumps({"keys": [{**public, "alg": "ES256"}]}))
    tokens = Tokens(jwks_file=jwks, issuer="https://issuer.example", audience="inference")
    access = Access(Settings(tokens=tokens).principals, TokenVerifier(tokens))
    guard = Guard(access, max_requests=8, max_request_bytes=1024, free_bytes=4096)
    app = web.Application()
    app.router.add_get("/", guard.around("GET /", INFER, error_form, handler))
    async with serving_http(
        *("127.0.0.1:0", app),
        tls=tls.of("router"),
        certificate_required=False,
        max_connections=8,
        grace_s=0.0,
    ) as port:
        yield f"https://127.0.0.1:{port}/"


@pytest.fixture
async def address(tls: Tls, tmp_path: Path) -> AsyncIterator[str]:
    """A server that names its caller to itself."""

    async def who(_: web.Request) -> web.Response:
        return web.Response(text=caller().name)

    async with serving(tls, tmp_path, who) as at:
        yield at


def token(lasts_s: float) -> str:
    claims = {
        "sub": "app",
        "exp": time.time() + lasts_s,
        "iss": "https://issuer.example",
        "aud": "inference",
    }
    return jwt.encode(claims, KEY, "ES256")


def context(tls: Tls, bearer: str = "") -> ssl.SSLContext:
    """Return a client's side: with the certificate of a bearer, or with none."""
    made = ssl.create_default_context(cafile=tls.of("router").ca_file)
    if bearer:
        role, _, name = bearer.partition("/")
        shown = tls.of(role, name)
        made.load_cert_chain(str(shown.certificate_file), shown.key_file)
    return made


async def test_a_certificate_or_a_token_lets_a_client_in(address: str, tls: Tls) -> None:
    async with (
        httpx.AsyncClient(verify=context(tls, "client/app")) as certified,
        httpx.AsyncClient(verify=context(tls)) as bare,
    ):
        by_certificate = await certified.get(address)
        by_token = await bare.get(address, headers={"Authorization": f"Bearer {token(60)}"})
        from_a_page = await certified.get(address, headers={"Origin": "http://a.example"})

    assert by_certificate.text == "spiffe://cinquefoil/client/app"
    assert by_token.text == "token:app"
    assert from_a_page.status_code == 200  # it has an identity


async def test_others_are_refused_with_the_status_of_their_mistake(address: str, tls: Tls) -> None:
    async with (
        httpx.AsyncClient(verify=context(tls, "planner")) as planner,
        httpx.AsyncClient(verify=context(tls)) as bare,
    ):
        wrong_role = await planner.get(address)
        anonymous = await bare.get(address)
        forged = await bare.get(address, headers={"Authorization": "Bearer forged"})

    assert wrong_role.status_code == 403
    assert "may not call" in wrong_role.json()["error"]
    assert anonymous.status_code == forged.status_code == 401
    assert anonymous.headers["WWW-Authenticate"] == "Bearer"


async def test_plaintext_on_a_port_with_tls_gets_nothing(address: str) -> None:
    async with httpx.AsyncClient() as plain:
        with pytest.raises(httpx.HTTPError):
            await plain.get(address.replace("https", "http"))


@pytest.mark.parametrize("shown", ["token", "certificate"])
async def test_a_request_ends_with_the_identity_of_its_client(tmp_path: Path, shown: str) -> None:
    """Generation that outlasts a token or certificate ends soon after it."""
    lasts_s = 3.0
    pki = issued(tmp_path, "router")
    issued(tmp_path, "client/app", days=lasts_s / 86_400)

    async def hang(*_: object) -> None:
        await asyncio.sleep(30)

    calls = Calls(cast(Engine, SimpleNamespace(infer=hang)), 1024)
    body = ModelInferRequest(model_name="m").SerializeToString()

    async def infer(request: web.Request) -> web.Response:
        await calls.infer(request, body)
        raise AssertionError

    async with serving(pki, tmp_path, infer) as address:
        begun_s = time.monotonic()
        bearer = "client/app" if shown == "certificate" else ""
        headers = {} if bearer else {"Authorization": f"Bearer {token(lasts_s)}"}
        async with httpx.AsyncClient(verify=context(pki, bearer), timeout=20) as client:
            answer = await client.get(address, headers=headers)

    assert answer.status_code == 401
    assert "expired" in answer.json()["error"]
    assert time.monotonic() - begun_s < lasts_s + 5.0


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ([{"kid": [], "kty": "oct", "k": "AA"}], "kid must be a string"),
        ([1] * 300, "at most 256 keys"),
        ([[]] * 40_000, "must be a JSON object with keys"),
    ],
)
def test_a_jwks_that_is_none_is_refused_in_a_sentence(
    tmp_path: Path, keys: list[object], why: str
) -> None:
    """Of any kind of key id, and before it takes memory."""
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": keys}))
    tokens = Tokens(jwks_file=tmp_path / "jwks.json", issuer="a", audience="b")
    with pytest.raises(FailedPrecondition, match=why):
        TokenVerifier(tokens)
