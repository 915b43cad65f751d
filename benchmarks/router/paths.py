"""The ways of a request to the same answer: direct, through Cinquefoil, or through a baseline."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from benchmarks.router import foreign, messages
from benchmarks.router.backend import SLO_LATENCY_S
from benchmarks.router.environments import binaries
from benchmarks.router.processes import ROOT, Server, Unavailable, started
from benchmarks.router.security import Security
from services.kit.net import free_port

Start = Callable[[Path, int], AbstractAsyncContextManager[Server]]
"""From a folder of its own and the backend's port to a running server.

Raises:
    Unavailable: The server does not run here.
"""

_FOREIGN = Path(foreign.__path__[0])
_SLOW_START_S = 90.0

_NGINX = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_max_body_size 0;
    client_body_buffer_size 1m;  # an image stays in memory
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000000;
    upstream backend {{
        server 127.0.0.1:{backend_port};
        keepalive 64;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 127.0.0.1:{port} {listen};
        {settings}
        location / {{ grpc_pass {scheme}://backend; }}
    }}
}}
"""

_NGINX_TLS = """
        ssl_certificate {certificate};
        ssl_certificate_key {key};
        grpc_ssl_certificate {certificate};
        grpc_ssl_certificate_key {key};
        grpc_ssl_trusted_certificate {ca};
        grpc_ssl_verify on;
        grpc_ssl_name localhost;  # nginx compares names, not addresses
"""


def direct(
    folder: Path, _: int, security: Security | None = None
) -> AbstractAsyncContextManager[Server]:
    """No hop: the backend itself, a raw grpc.aio server."""
    port = free_port()
    command = _python("benchmarks.router.backend", port)
    if security is not None:
        command = *command, str(security.folder)
    return started(command, port, folder, security=security)


def passthrough(folder: Path, backend_port: int) -> AbstractAsyncContextManager[Server]:
    """The smallest grpc.aio proxy."""
    port = free_port()
    command = _python("benchmarks.router.passthrough", port, backend_port)
    return started(command, port, folder)


def http_proxy(folder: Path, port: int, router_port: int) -> AbstractAsyncContextManager[Server]:
    """An HTTP server of its own in front of the router's gRPC."""
    ready = free_port()
    command = _python("benchmarks.router.http_proxy", port, ready, router_port)
    return started(command, ready, folder)


def nginx(
    folder: Path, backend_port: int, security: Security | None = None
) -> AbstractAsyncContextManager[Server]:
    """Nginx with grpc_pass, one worker process."""
    places = os.environ.get("PATH", ""), "/usr/sbin"  # where Debian has it, for root's PATH only
    program = shutil.which("nginx", path=os.pathsep.join(places))
    if program is None:
        raise Unavailable("not installed: apt install nginx")
    port, settings = free_port(), folder / "nginx.conf"
    here = {"listen": "http2", "settings": "", "scheme": "grpc"}
    if security is not None:
        files = _NGINX_TLS.format(**security.files("router"))
        here = {"listen": "ssl http2", "settings": files, "scheme": "grpcs"}
    settings.write_text(_NGINX.format(folder=folder, port=port, backend_port=backend_port, **here))
    return started((program, "-c", settings), port, folder, security=security)


def envoy(folder: Path, backend_port: int) -> AbstractAsyncContextManager[Server]:
    """Envoy, one worker thread."""
    program, port, settings = binaries("envoy") / "envoy", free_port(), folder / "envoy.yaml"
    settings.write_text(yaml.safe_dump(_envoy_settings(port, backend_port)))
    options = "--concurrency", 1, "--disable-hot-restart", "--log-level", "warn"
    return started((program, "--config-path", settings, *options), port, folder)


def _envoy_settings(port: int, backend_port: int) -> dict[str, Any]:
    def at(port: int) -> dict[str, Any]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": port}}

    extensions = "type.googleapis.com/envoy.extensions"
    manager = f"{extensions}.filters.network.http_connection_manager.v3.HttpConnectionManager"
    router = f"{extensions}.filters.http.router.v3.Router"
    options = f"{extensions}.upstreams.http.v3.HttpProtocolOptions"
    route = {"match": {"prefix": "/"}, "route": {"cluster": "backend", "timeout": "0s"}}
    listener = {
        "address": at(port),
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "http",
                        "typed_config": {
                            "@type": manager,
                            "stat_prefix": "http",
                            "codec_type": "HTTP2",
                            "route_config": {
                                "virtual_hosts": [
                                    {"name": "all", "domains": ["*"], "routes": [route]}
                                ]
                            },
                            "http_filters": [{"name": "r", "typed_config": {"@type": router}}],
                        },
                    }
                ]
            }
        ],
    }
    cluster = {
        "name": "backend",
        "type": "STATIC",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": options,
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "load_assignment": {
            "cluster_name": "backend",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": at(backend_port)}}]}],
        },
    }
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def mlserver(folder: Path, _: int) -> AbstractAsyncContextManager[Server]:
    """MLServer with the model in its process: it answers itself, there is no hop."""
    program = binaries("mlserver") / "mlserver"
    port, model = free_port(), folder / "models" / messages.MODEL
    model.mkdir(parents=True, exist_ok=True)
    settings = {"name": messages.MODEL, "implementation": "mlserver_model.Instant"}
    (model / "model-settings.json").write_text(json.dumps(settings))
    environment = {
        "PYTHONPATH": str(_FOREIGN),
        "MLSERVER_DEBUG": "false",
        "MLSERVER_HOST": "127.0.0.1",
        "MLSERVER_GRPC_PORT": str(port),
        "MLSERVER_HTTP_PORT": str(free_port()),
        "MLSERVER_METRICS_PORT": str(free_port()),
        "MLSERVER_PARALLEL_WORKERS": "0",
    }
    command = program, "start", model.parent
    return started(command, port, folder, environment, patience_s=_SLOW_START_S)


def ray(folder: Path, _: int) -> AbstractAsyncContextManager[Server]:
    """Ray Serve, gRPC proxy and one replica, which answers itself."""
    program = binaries("ray") / "python"
    port, answer = free_port(), folder / "answer"
    answer.write_bytes(messages.answer())
    environment = {
        "PYTHONPATH": str(ROOT / "protos"),
        "RAY_AUTH_MODE": "disabled",  # else it writes a token into the home folder
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    command = program, _FOREIGN / "ray_app.py", port, free_port(), answer
    return started(command, port, folder, environment, patience_s=_SLOW_START_S)


def cinquefoil(  # noqa: PLR0913 - one value per setting
    folder: Path,
    backend_port: int,
    *,
    slo_latency_s: float = SLO_LATENCY_S,
    http_port: int = 0,
    transport: str = "own",
    security: Security | None = None,
    **model: Any,
) -> AbstractAsyncContextManager[Server]:
    """The router as users start it; metrics and receipts on.

    Args:
        folder: Of its own.
        backend_port: Of worker, planner and carbon.
        slo_latency_s: The model's objective.
        http_port: Port of its HTTP edge; 0: none.
        transport: Of the router's clients.
        security: Mutual TLS between services, and a token of clients; None: plaintext.
        model: Further settings of the model.
    """
    port, settings = free_port(), folder / "cinquefoil.yaml"
    made = _deployment(port, backend_port, slo_latency_s, model)
    made["router"]["http_listen"] = f"127.0.0.1:{http_port}" if http_port else ""
    made["rpc"] = {"transport": transport}
    if security is not None:
        made |= security.sections()
        made["router"] |= {
            "listen": f"127.0.0.1:{free_port()}",
            "token_listen": f"127.0.0.1:{port}",
        }
    settings.write_text(yaml.safe_dump(made))
    return started(
        (*_python("services.cli"), "router", "serve"),
        port,
        folder,
        {"CINQUEFOIL_CONFIG": str(settings)},
        security=security,
    )


def _deployment(
    port: int, backend_port: int, slo_latency_s: float, model: dict[str, Any]
) -> dict[str, Any]:
    peer = {"address": f"127.0.0.1:{backend_port}"}
    source = {"kind": "static", "intensity_gco2e_per_kwh": 200}
    profile = {"kind": "analytic", "gmacs_per_item": 1}
    variant = {"file": "model.onnx", "accuracy": 1, "profile": profile}
    return {
        "version": "v1",
        "carbon": {**peer, "zones": {messages.ZONE: {"source": source}}},
        "planner": peer,
        "nodes": {"node": {"zone": messages.ZONE}},
        "models": {
            messages.MODEL: {
                "slo": {"latency_s": slo_latency_s},
                "demand_rps": 1,
                "variants": {messages.VARIANT: variant},
                **model,
            }
        },
        "router": {
            "listen": f"127.0.0.1:{port}",
            "metrics": f"127.0.0.1:{free_port()}",
        },
    }


def _python(module: str, *ports: int) -> tuple[str | int, ...]:
    safe = ("-P",) if module.startswith("services.") else ()  # `benchmarks` is found from here
    return (sys.executable, *safe, "-m", module, *ports)


PATHS: dict[str, Start] = {
    "direct": direct,
    "nginx": nginx,
    "envoy": envoy,
    "passthrough": passthrough,
    "mlserver": mlserver,
    "ray": ray,
    "cinquefoil": cinquefoil,
    "grpcio": partial(cinquefoil, transport="grpcio"),
}


def secure_paths(security: Security) -> dict[str, Start]:
    """Return the paths that can speak TLS on both sides; the names are those of PATHS."""
    return {
        "direct": partial(direct, security=security),
        "nginx": partial(nginx, security=security),
        "cinquefoil": partial(cinquefoil, security=security),
    }
