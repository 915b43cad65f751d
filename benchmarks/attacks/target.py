"""The suite under attack: real processes with mutual TLS, a port for tokens, and HTTP.

Three nodes: `node-0` is honest. The agent of `node-1` is real, too, but starts workers that lie on
demand (`lies/evil_worker.py`). `node-evil` is in the deployment and has no agent: attackers join
with its certificate. The plan is pinned, so that workers of both nodes serve all the time.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import grpc
import jwt
import yaml
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks._secured import secure
from benchmarks.chaos.suite import VARIANTS, Digits, deployment
from cinquefoil.gpuagent.v1 import gpuagent_pb2, inventory_pb2
from cinquefoil.gpuagent.v1.gpuagent_pb2_grpc import GpuAgentServiceStub
from cinquefoil.planner.v1 import planner_pb2
from cinquefoil.planner.v1.planner_pb2_grpc import PlannerServiceStub
from cinquefoil.router.v1 import router_pb2
from cinquefoil.router.v1.router_pb2_grpc import RouterServiceStub
from services.kit.config import Deployment, Tls
from services.kit.config.loader import load
from services.kit.net import free_port
from services.kit.rpc import dial
from services.local.demo import model_family
from services.local.pki import Authority, Identity
from services.local.up.health import until_answering
from services.local.up.process import Program
from services.local.up.suite import Suite, programs

Transport = Literal["own", "grpcio"]

OBJECTIVE_S: Final = 1.0
"""Latency objective: of a suite, its attackers and its clients on one machine of two cores."""

EVIL_NODE: Final = "node-1"
_ISSUER: Final = "https://issuer.example"
_AUDIENCE: Final = "inference"
_KEY_ID: Final = "k"
_READY_S: Final = 120.0
_LIARS: Final = 4
"""GPUs of the evil node: a router leaves a worker that lied for 10 s."""

_QUOTA: Final = {"in_flight": 64, "rate_rps": 300, "burst": 300}


@dataclass(frozen=True, slots=True)
class Target:
    """The suite as attackers find it.

    Attributes:
        folder: Of its files.
        config: Its deployment file.
        deployment: Its deployment.
        authority: Issues certificates.
        suite: Its processes.
        transport: Of its calls.
        token: Token of an honest client.
        worker: Address of a worker of node-0.
        digits: Requests, and the right answers.
        gpu: UUID of the GPU of node-0.
        segment: Id of the segment on it.
    """

    folder: Path
    config: Path
    deployment: Deployment
    authority: Authority
    suite: Suite
    transport: Transport
    token: str
    digits: Digits
    worker: str = ""
    gpu: str = ""
    segment: str = ""

    def tls(self, role: str, name: str = "") -> Tls:
        """Return the certificate of somebody."""
        assert self.deployment.tls is not None  # written by `_written`
        return self.deployment.tls.of(role, name)

    @property
    def attacker(self) -> Tls:
        """Certificate of a client that attacks."""
        return self.tls("client", "attacker")

    @property
    def stranger(self) -> Tls:
        """Authority of the servers, and no certificate."""
        return Tls(ca_file=self.tls("router").ca_file)

    @property
    def operator(self) -> Tls:
        """Certificate of the operator."""
        return self.tls("operator")

    def context(self, tls: Tls, protocol: str = "h2") -> ssl.SSLContext:
        """Return the TLS context of a client."""
        made = ssl.create_default_context(cafile=tls.ca_file)
        made.set_alpn_protocols([protocol])
        if tls.certificate_file is not None:
            made.load_cert_chain(tls.certificate_file, tls.key_file)
        return made

    @property
    def router(self) -> str:
        """Address of the router."""
        return self.deployment.router.listen

    @property
    def token_port(self) -> str:
        """Address of the router for clients with tokens."""
        return self.deployment.router.token_listen

    @property
    def http(self) -> str:
        """URL of the router."""
        return f"https://{self.deployment.router.http_listen}"

    @property
    def planner(self) -> str:
        """Address of the planner."""
        return self.deployment.planner.listen

    def process(self, name: str) -> int:
        """Return the id of a process of the suite."""
        return self.suite.processes[name]

    async def fleet(self) -> planner_pb2.GetFleetResponse:
        """Return the fleet as the operator sees it."""
        async with dial(self.planner, self.operator) as channel:
            return await PlannerServiceStub(channel).GetFleet(
                planner_pb2.GetFleetRequest(), timeout=10.0
            )

    async def router_status(self) -> router_pb2.GetStatusResponse:
        """Return the router's state as the operator sees it."""
        async with dial(self.router, self.operator) as channel:
            return await RouterServiceStub(channel).GetStatus(
                router_pb2.GetStatusRequest(), timeout=10.0
            )

    async def node(self) -> inventory_pb2.Node:
        """Return node-0 as its agent sees it."""
        async with dial(self.deployment.nodes["node-0"].listen, self.operator) as channel:
            stub = GpuAgentServiceStub(channel)
            reply = await stub.GetNode(gpuagent_pb2.GetNodeRequest(), timeout=10.0)
        return reply.node


@asynccontextmanager
async def target(
    folder: Path, transport: Transport, say: Callable[[str], object]
) -> AsyncIterator[Target]:
    """Run the suite while the block runs; `say` takes each step of its start."""
    models = folder / "models"
    model_family.train(models, say, list(VARIANTS))
    config = _written(folder, transport)
    key = ec.generate_private_key(ec.SECP256R1())
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    keys = {"keys": [{**public, "alg": "ES256", "kid": _KEY_ID}]}
    (folder / "jwks.json").write_text(json.dumps(keys))
    authority = secure(config, folder / "pki")
    _let_tokens_in(config, folder)
    found = load(config)
    for role, name in (("client", "victim"), ("client", "attacker"), ("client", "limited")):
        authority.issue(Identity(role, name), days=1)
    chosen = [_evil(each) for each in programs(found, config) if "node-evil" not in each.name]
    suite = Suite(chosen, folder / "logs")
    say(f"starting {len(chosen)} services")
    async with suite:
        async with asyncio.timeout(_READY_S):
            await until_answering(found.router.listen, found.identity("operator"))
        token = _token(key, "victim")
        made = Target(folder, config, found, authority, suite, transport, token, Digits(models))
        say("waiting for the plan and its workers")
        settled = await _settled(made)
        say("ready")
        yield settled


def _written(folder: Path, transport: Transport) -> Path:
    document = deployment(folder, f"127.0.0.1:{free_port()}")
    document["rpc"] = {"transport": transport}
    document["planner"]["strategy"] = "base"
    document["models"]["digits"]["slo"]["latency_s"] = OBJECTIVE_S
    node = document["nodes"]["node-0"]
    for name in (EVIL_NODE, "node-evil"):
        document["nodes"][name] = {
            **node,
            "listen": f"127.0.0.1:{free_port()}",
            "state_dir": str(folder / name),
        }
    document["nodes"][EVIL_NODE]["simulated"] = ["a100-40gb"] * _LIARS
    document["router"] |= {
        "http_listen": f"127.0.0.1:{free_port()}",
        "quotas": {"spiffe://cinquefoil/client/limited": _QUOTA},
    }
    config = folder / "cinquefoil.yaml"
    config.write_text(yaml.safe_dump(document))
    return config


def _let_tokens_in(config: Path, folder: Path) -> None:
    """Open a second port to clients with tokens of an issuer."""
    document = yaml.safe_load(config.read_text())
    document["router"]["token_listen"] = f"127.0.0.1:{free_port()}"
    document["access"]["tokens"] = {
        "jwks_file": str(folder / "jwks.json"),
        "issuer": _ISSUER,
        "audience": _AUDIENCE,
    }
    config.write_text(yaml.safe_dump(document))


def _token(key: ec.EllipticCurvePrivateKey, subject: str) -> str:
    claims = {"sub": subject, "exp": time.time() + 3600, "iss": _ISSUER, "aud": _AUDIENCE}
    return jwt.encode(claims, key, "ES256", headers={"kid": _KEY_ID})


def _evil(program: Program) -> Program:
    """Return a program; the agent of the evil node starts workers that lie."""
    if program.name != f"gpuagent-{EVIL_NODE}":
        return program
    module = program.argv.index("services.cli")
    argv = list(program.argv)
    argv[module] = "benchmarks.attacks.lies.evil_agent"
    assert argv[0] == sys.executable
    return replace(program, argv=tuple(argv))


async def _settled(made: Target) -> Target:
    """Return a target whose plan is active and held, and whose workers all serve."""

    async def served() -> bool:
        status = await made.router_status()
        instances = [each for model in status.models for each in model.instances]
        segments = {each.segment_id for each in instances if each.connected}
        return len(segments) > 1

    if not await until(served, _READY_S):
        raise TimeoutError(f"workers of two nodes did not serve within {_READY_S:.0f} s")
    async with dial(made.planner, made.operator) as channel:
        await PlannerServiceStub(channel).Pin(planner_pb2.PinRequest(), timeout=10.0)
    node = await made.node()
    (segment, *_) = node.segments
    return replace(
        made,
        worker=segment.endpoints[0],
        gpu=node.gpus[0].uuid,
        segment=segment.spec.segment_id,
    )


async def until(holds: Callable[[], Awaitable[bool]], timeout_s: float) -> bool:
    """Wait until a condition holds; return whether it did in time."""
    ends_s = time.monotonic() + timeout_s
    while time.monotonic() < ends_s:
        try:
            if await holds():
                return True
        except grpc.aio.AioRpcError:
            pass
        await asyncio.sleep(0.1)
    return False


Attack = Callable[[Target], Awaitable[str]]
"""Tries one; returns "" where it had what it wanted, else how it was refused."""


class Row(dict[str, Any]):
    """A finding, as the tables and the document have it."""
