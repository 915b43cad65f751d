"""Machines as network namespaces, whose link can be cut: connections stay half-open."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

_IP: Final = "ip"
ID = os.getpid()
NET = f"10.{200 + ID // 256 % 50}.{ID % 256}"
HOST = f"{NET}.1"
"""Address of this machine, as all namespaces reach it while the first one exists."""


def unavailable() -> str:
    """Return why there can be no network namespaces here; "": there can."""
    if os.geteuid():
        return "needs root: it makes network namespaces"
    if shutil.which(_IP) is None:
        return "needs ip (Debian: iproute2)"
    tried = subprocess.run(
        [_IP, "netns", "add", f"cq{ID}"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        return f"needs network namespaces: {tried.stderr.strip()}"
    _ip(f"netns del cq{ID}")
    return ""


def _ip(*lines: str, namespace: str = "") -> None:
    """Run commands of `ip`."""
    inside = ["-n", namespace] if namespace else []
    subprocess.run([_IP, *inside, "-batch", "-"], input="\n".join(lines), text=True, check=True)


@dataclass(frozen=True)
class Namespace:
    """A namespace whose one interface leads to this machine. Attributes: name, number."""

    name: str
    number: int

    @property
    def address(self) -> str:
        """Its address."""
        return f"{NET}.{4 * self.number + 2}"

    @property
    def prefix(self) -> tuple[str, ...]:
        """Command that runs another one inside."""
        return (_IP, "netns", "exec", self._id)

    @property
    def _id(self) -> str:
        return f"cq{ID}-{self.number}"

    @property
    def _gateway(self) -> str:
        return f"{NET}.{4 * self.number + 1}"

    def create(self) -> None:
        """Make it, and connect it."""
        _ip(
            f"netns add {self._id}",
            f"link add {self._id} type veth peer name eth0 netns {self._id}",
            f"addr add {self._gateway}/30 dev {self._id}",
            f"link set {self._id} up",
        )
        _ip("link set lo up", f"addr add {self.address}/30 dev eth0", namespace=self._id)
        self.mend()

    def cut(self) -> None:
        """Take its network down, without any notice."""
        _ip("link set eth0 down", namespace=self._id)

    def mend(self) -> None:
        """Bring its network up."""
        route = f"route add default via {self._gateway}"
        _ip("link set eth0 up", route, namespace=self._id)

    def remove(self) -> None:
        """Remove it, if it is there; its link, too, which a process inside would keep."""
        for what in ("link", "netns"):
            subprocess.run([_IP, what, "del", self._id], check=False, capture_output=True)


@contextmanager
def namespaces(names: Sequence[str]) -> Iterator[list[Namespace]]:
    """Make a namespace of each name while the block runs."""
    found = [Namespace(name, number) for number, name in enumerate(names)]
    try:
        for each in found:
            each.create()
        yield found
    finally:
        for each in found:
            each.remove()
