"""TLS between services: who is let in, and by what name."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest

from cinquefoil.carbon.v1 import carbon_pb2 as pb
from cinquefoil.carbon.v1.carbon_pb2_grpc import CarbonServiceStub
from services.kit.config import Tls
from services.kit.rpc import dial, serving
from services.router.frontend.client_identity import client_of
from tests.support.scripted_service import ADDRESS, scripted

OPENSSL = shutil.which("openssl")


async def nothing(_context: Any) -> list[str]:
    return []


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority, and NAME.crt and NAME.key that it signed for both sides."""
    if OPENSSL is None:
        pytest.skip("the openssl program, which makes the certificates, is not installed")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run([OPENSSL, *arguments], cwd=folder, check=True, capture_output=True)

    new = ("req", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    openssl(*new, "-x509", "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=authority")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for name in ("server", "client"):
        openssl(*new, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        openssl(
            "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", "-extfile", "names",
            "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
        )  # fmt: skip
    return folder


def tls(folder: Path, name: str) -> Tls:
    """Return the settings of the side called `name`."""
    return Tls(
        certificate_file=folder / f"{name}.crt",
        key_file=folder / f"{name}.key",
        ca_file=folder / "ca.crt",
        require_client_certificate=True,
    )


async def test_mutual_tls_lets_in_who_shows_a_certificate(certificates: Path) -> None:
    async with (
        scripted(nothing, tls=tls(certificates, "server")) as (_, _, server),
        dial(f"127.0.0.1:{server.port}", tls(certificates, "client")) as channel,
    ):
        stub = CarbonServiceStub(channel)
        reply = await stub.GetIntensity(pb.GetIntensityRequest(zone="Z"), timeout=20)

    assert reply.intensity.zone == "Z"


@pytest.mark.parametrize("shown", ["nothing", "plaintext"])
async def test_mutual_tls_keeps_out_who_does_not(certificates: Path, shown: str) -> None:
    client = Tls(ca_file=certificates / "ca.crt") if shown == "nothing" else None
    async with (
        scripted(nothing, tls=tls(certificates, "server")) as (_, _, server),
        dial(f"127.0.0.1:{server.port}", client) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await CarbonServiceStub(channel).ListZones(pb.ListZonesRequest(), timeout=20)

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_without_its_key_does_not_start(certificates: Path) -> None:
    half = Tls(certificate_file=certificates / "server.crt")
    with pytest.raises(RuntimeError, match="needs certificate_file and key_file"):
        async with serving(ADDRESS, lambda _: None, (), tls=half, grace_s=0):
            pass


async def test_a_client_is_called_by_what_it_says_else_its_certificate_else_its_host(
    certificates: Path,
) -> None:
    """Whoever shares a host but not a certificate takes turns of its own."""

    async def who(context: Any) -> list[str]:
        return [client_of(context)]

    async with (
        scripted(who, tls=tls(certificates, "server")) as (_, _, server),
        dial(f"127.0.0.1:{server.port}", tls(certificates, "client")) as channel,
        scripted(who) as (plain, _, _),
    ):
        named = (("x-client-id", "batch"),)
        asked: Any = CarbonServiceStub(channel).ListZones
        said = [
            list((await call).zones)
            for call in (
                asked(pb.ListZonesRequest(), metadata=named, timeout=20),
                asked(pb.ListZonesRequest(), timeout=20),
                plain.ListZones(pb.ListZonesRequest()),
            )
        ]

    assert said == [["id:batch"], ["certificate:127.0.0.1"], ["ipv4:127.0.0.1"]]
