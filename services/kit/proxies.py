"""HTTP proxies of the environment: requests that leave the suite obey them, its own calls do not.

Source: GNU Wget, "Proxies" (`http_proxy`, `https_proxy`, `no_proxy`); curl, "Environment"
(`all_proxy`); gRPC, "Environment variables" (`grpc_proxy`).
"""

import os
from typing import Final
from urllib.parse import urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]  # typeshed

from services.kit.errors import FailedPrecondition
from services.kit.net import is_loopback_host, without_password

VARIABLES: Final = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
"""Variables that name a proxy. HTTP clients read them in capital letters, too."""

LOOPBACK_DIRECT: Final = {f"all://{host}": None for host in ("localhost", "127.0.0.1", "[::1]")}
"""httpx's `mounts` that keep requests to this machine from proxies."""

DIRECT: Final = ("grpc.enable_http_proxy", 0)
"""The option of a gRPC channel that ignores the environment's proxies."""

_OF_GRPC: Final = ("grpc_proxy", "https_proxy", "http_proxy")


def grpc_variable(host: str) -> str:
    """Return the variable whose proxy other gRPC clients use for a host; "": none.

    For this machine too, unless `no_grpc_proxy` or `no_proxy` names it.
    """
    excepted = next(filter(None, map(os.environ.get, ("no_grpc_proxy", "no_proxy"))), "")
    if proxy_bypass_environment(host, {"no": excepted}):
        return ""
    return next((name for name in _OF_GRPC if os.environ.get(name)), "")


def variable_for(url: str) -> str:
    """Return the variable whose proxy calls to a URL go through; "": they go directly.

    Args:
        url: The URL; its scheme is "grpc" for a call that gRPC makes.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback_host(host):
        return ""
    if parts.scheme == "grpc":
        return grpc_variable(host)
    if proxy_bypass_environment(parts.netloc.rpartition("@")[2]):
        return ""
    both = (f"{parts.scheme}_proxy", "all_proxy")
    names = (each for name in both for each in (name, name.upper()))
    return next((name for name in names if os.environ.get(name)), "")


def proxy_for(url: str) -> str | None:
    """Return the URL of the HTTP proxy that requests to a URL go through; None: directly.

    Raises:
        FailedPrecondition: It is not an HTTP proxy.
    """
    if not (name := variable_for(url)):
        return None
    value = os.environ[name]
    found = value if "://" in value else f"http://{value}"
    if urlsplit(found).scheme not in ("http", "https"):
        raise unusable(ValueError(f"{name} is {value}"))
    return found


def note(url: str) -> str:
    """Return words for the error of a call to a URL; "" where no proxy was in its way."""
    name = variable_for(url)
    host = urlsplit(url).hostname
    return name and f" (through the proxy of {name}; no_proxy={host} would call it directly)"


def unusable(error: Exception) -> FailedPrecondition:
    """Return the error for a proxy of the environment that an HTTP client refuses."""
    given = [name for each in VARIABLES for name in (each, each.upper()) if os.environ.get(name)]
    why = without_password(str(error))
    return FailedPrecondition(
        f"a proxy of the environment ({', '.join(given)}) cannot be used: {why};"
        " give http://HOST:PORT, or unset the variable"
    )
