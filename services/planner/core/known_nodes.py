"""Known nodes: those of the deployment file, and those that joined without it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from services.kit import config


@dataclass(frozen=True, slots=True)
class JoinedNode:
    """A node that announced itself.

    Attributes:
        name: Name of the node.
        zone: Electricity zone of the node.
        address: "host:port" of its agent; its workers listen at the host.
    """

    name: str
    zone: str
    address: str


class GpuPower(NamedTuple):
    """Power of a GPU, W. Attributes: idle_w, limit_w (most that its meter can show); 0: unknown."""

    idle_w: float = 0.0
    limit_w: float = 0.0


def together(powers: Iterable[GpuPower]) -> GpuPower:
    """Return the power of the GPUs of one segment; its limit where that of each is known."""
    held = tuple(powers)
    known = all(each.limit_w for each in held)
    limit_w = sum(each.limit_w for each in held) if known else 0.0
    return GpuPower(sum(each.idle_w for each in held), limit_w)


@dataclass(frozen=True, slots=True)
class NodeRoutes:
    """A node's contribution to routes.

    Attributes:
        endpoints: "host:port" of the workers of each serving segment, by segment id.
        pue: PUE of the node.
        powers: Power of the GPUs of those segments, by UUID of a segment's first.
    """

    endpoints: Mapping[str, tuple[str, ...]]
    pue: float
    powers: Mapping[str, GpuPower]


class KnownNodes(Mapping[str, config.Node]):
    """Settings of nodes by name.

    Attributes:
        joined: Nodes that joined, by name.
        join: Settings for nodes that join; None: none may.
    """

    def __init__(self, file: Mapping[str, config.Node], join: config.Join | None = None) -> None:
        """Start with the nodes of a deployment file.

        Args:
            file: Nodes of the file.
            join: Settings for nodes that join; None: none may.
        """
        self.joined: dict[str, JoinedNode] = {}
        self._nodes = dict(file)
        self._file = frozenset(file)
        self.join = join

    def __getitem__(self, name: str) -> config.Node:
        """Return the settings of a node."""
        return self._nodes[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the nodes' names."""
        return iter(self._nodes)

    def __len__(self) -> int:
        """Return the number of nodes."""
        return len(self._nodes)

    def in_file(self, name: str) -> bool:
        """Return whether the deployment file names a node."""
        return name in self._file

    def configure(
        self, file: Mapping[str, config.Node], join: config.Join | None
    ) -> frozenset[str]:
        """Apply a changed file; return the nodes that it no longer names. They stay."""
        gone = frozenset(name for name in self._file if name not in file)
        self._file, self.join = frozenset(file), join
        self._nodes.update(file)
        self.joined = {name: node for name, node in self.joined.items() if name not in file}
        if join is not None:
            self._nodes |= {
                node.name: join.node(node.zone, node.address) for node in self.joined.values()
            }
        return gone

    def admit(self, node: JoinedNode) -> None:
        """Add a joining node, or its new address."""
        if self.join is not None and not self.in_file(node.name):
            self.joined[node.name] = node
            self._nodes[node.name] = self.join.node(node.zone, node.address)

    def drop(self, name: str) -> None:
        """Remove a node."""
        self.joined.pop(name, None)
        self._nodes.pop(name, None)
