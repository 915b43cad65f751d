"""Authentication over HTTP: certificates, tokens, and paths that are always closed."""

import json
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec

from services.kit.config import Access as Settings
from services.kit.config import Tls, Tokens
from services.kit.http.server import serving_http
from services.kit.rpc import Access, caller
from services.router.adapters.tokens import TokenVerifier
from services.router.edge.guard import Guard
from services.router.edge.inference_protocol import error_form
from tests.support.certificates import issued

INFER = "/inference.GRPCInferenceService/ModelInfer"
KEY = ec.generate_private_key(ec.SECP256R1())


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    folder = tmp_path_factory.mktemp("pki")
    return issued(folder, "router", "client/app", "planner")


@pytest.fixture
async def address(tls: Tls, tmp_path: Path) -> AsyncIterator[str]:
    """A server that names its caller to itself, for callers that may infer."""
    jwks = tmp_path / "jwks.json"
    public = jwt.algorithms.ECAlgorithm.to_jwk(KEY.public_key(), as_dict=True)
    jwks.write_text(json.dumps({"keys": [{**public, "alg": "ES256"}]}))
    tokens = Tokens(jwks_file=jwks, issuer="https://issuer.example", audience="inference")
    settings = Settings(tokens=tokens)
    access = Access(settings.principals, TokenVerifier(tokens))
    guard = Guard(access, max_requests=8, max_request_bytes=1024, free_bytes=4096)

    async def who(_: web.Request) -> web.Response:
        return web.Response(text=caller().name)

    app = web.Application()
    app.router.add_get("/", guard.around("GET /", INFER, error_form, who))
    identity = tls.of("router")
    async with serving_http(
        *("127.0.0.1:0", app),
        tls=identity,
        certificate_required=False,
        max_connections=8,
        grace_s=0.0,
    ) as port:
        yield f"https://127.0.0.1:{port}/"


def context(tls: Tls, bearer: str = "") -> ssl.SSLContext:
    """Return a client's side: with the certificate of a bearer, or with none."""
    made = ssl.create_default_context(cafile=tls.of("router").ca_file)
    if bearer:
        role, _, name = bearer.partition("/")
        shown = tls.of(role, name)
        made.load_cert_chain(str(shown.certificate_file), shown.key_file)
    return made


async def test_a_certificate_or_a_token_lets_a_client_in(address: str, tls: Tls) -> None:
    claims = {
        "sub": "app",
        "exp": time.time() + 60,
        "iss": "https://issuer.example",
        "aud": "inference",
    }
    token = jwt.encode(claims, KEY, "ES256")
    async with (
        httpx.AsyncClient(verify=context(tls, "client/app")) as certified,
        httpx.AsyncClient(verify=context(tls)) as bare,
    ):
        by_certificate = await certified.get(address)
        by_token = await bare.get(address, headers={"Authorization": f"Bearer {token}"})
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
