"""Metrics pages of servers that are not ours: found on the ports they listen on, read in bounds."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import aiohttp
import psutil
from yarl import URL

from services.kit.errors import InvalidArgument
from services.kit.net import is_ip, may_name, plain_ip
from services.kit.server_metrics.figures import ServerFigures, figures
from services.kit.server_metrics.page import fetch

_TIMEOUT: Final = aiohttp.ClientTimeout(total=3.0, sock_connect=1.0)
MAX_PORTS: Final = 16
"""Ports of a workload that are tried."""

_ROUTES_BYTES: Final = 2**20

_ANY: Final = frozenset({"0.0.0.0", "::", "127.0.0.1", "::1"})  # noqa: S104 - compared


@dataclass(frozen=True, slots=True)
class Page:
    """A metrics page. Attributes: url; figures (by model; (): of no known server)."""

    url: str
    figures: tuple[ServerFigures, ...]


def checked_url(text: str) -> str:
    """Return the address of a metrics page: "/metrics" where no path is given.

    Raises:
        InvalidArgument: It is not an address.
    """
    try:
        url = URL(text if "://" in text else f"http://{text}")
    except ValueError:
        url = URL()
    if url.scheme not in {"http", "https"} or not url.host:
        raise InvalidArgument(
            f"--server: must be host:port or http(s)://host:port/path, got {text!r}",
            field="server",
        )
    return str(url.with_path("/metrics") if url.path in {"", "/"} else url)


async def read_page(session: aiohttp.ClientSession, url: str) -> Page | None:
    """Return a server's figures; None: there is no page, or it is of no server that is known."""
    try:
        page = await fetch(session, url, _TIMEOUT)
    except (OSError, aiohttp.ClientError, TimeoutError):
        return None
    found = await asyncio.to_thread(figures, page)
    return Page(url, found) if found else None


def listening_urls(pids: Iterable[int]) -> tuple[str, ...]:
    """Return addresses that processes listen on, as metrics pages. Blocks."""
    found: dict[str, None] = {}
    for pid in dict.fromkeys(pids):
        for host, port in _listening(pid):
            found[f"http://{host}:{port}/metrics"] = None
    return tuple(found)[:MAX_PORTS]


def _listening(pid: int) -> Iterator[tuple[str, int]]:
    with suppress(psutil.Error, OSError):
        for each in psutil.Process(pid).net_connections(kind="tcp"):
            if each.status != psutil.CONN_LISTEN:
                continue
            host = each.laddr.ip
            if is_elsewhere(pid):
                host = reached_at(_own_address(pid) if host in _ANY else host)
            elif host in _ANY:
                host = "127.0.0.1"
            if host:
                yield (f"[{host}]" if ":" in host else host), each.laddr.port


def is_elsewhere(pid: int) -> bool:
    """Return whether a process has a network of its own."""
    return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()


def reached_at(own: str) -> str:
    """Return the address at which a process in a network of its own is reached; "": at none.

    It listens wherever it likes: its loopback is not ours, and its link-local address may be the
    one at which we find a cloud's credentials.

    Args:
        own: Address that it listens at, or of its network where it listens at all of them.
    """
    if not is_ip(own):
        return ""
    found = plain_ip(own)
    return own if not found.is_loopback and may_name(found, found, ()) else ""


def _own_address(pid: int) -> str:
    """Return the first address of a process's network that is not loopback's; "": none."""
    with Path(f"/proc/{pid}/net/fib_trie").open(encoding="ascii", errors="replace") as file:
        return _first_address(file.read(_ROUTES_BYTES).splitlines())


def _first_address(lines: list[str]) -> str:
    for line, following in pairwise(lines):
        address = line.strip().removeprefix("|-- ")
        if "/32 host LOCAL" in following and not address.startswith("127."):
            return address
    return ""
