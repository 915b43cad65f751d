"""Which nodes there are: those of the deployment file, and those that joined without it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from services.kit import config


@dataclass(frozen=True, slots=True)
class JoinedNode:
    """A node that announced itself.

    Attributes:
        name: Its name.
        zone: Its electricity zone.
        address: "host:port" of its agent; its workers listen at the host.
    """

    name: str
    zone: str
    address: str


@dataclass(frozen=True, slots=True)
class NodeRoutes:
    """What routes are made of, of a node.

    Attributes:
        endpoints: "host:port" of the workers of each segment that serves, by segment id.
        pue: Of the node.
        idle_power_w: Of the GPUs where those segments run, by UUID, W.
    """

    endpoints: Mapping[str, tuple[str, ...]]
    pue: float
    idle_power_w: Mapping[str, float]


class Roster(Mapping[str, config.Node]):
    """The nodes' settings by name.

    Attributes:
        joined: Nodes that joined, by name.
        join: What is said of nodes that join; None: none may.
    """

    def __init__(self, file: Mapping[str, config.Node], join: config.Join | None = None) -> None:
        """Begin with the nodes of a deployment file.

        Args:
            file: Its nodes.
            join: What is said of nodes that join; None: none may.
        """
        self.joined: dict[str, JoinedNode] = {}
        self._nodes = dict(file)
        self._file = frozenset(file)
        self.join = join

    def __getitem__(self, name: str) -> config.Node:
        """Return the settings of a node."""
        return self._nodes[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._nodes)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._nodes)

    def in_file(self, name: str) -> bool:
        """Return whether the deployment file names a node."""
        return name in self._file

    def configure(
        self, file: Mapping[str, config.Node], join: config.Join | None
    ) -> frozenset[str]:
        """Take over a changed file; return the nodes that it names no longer. They stay."""
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
        """Add a node that joins, or its new address."""
        if self.join is not None and not self.in_file(node.name):
            self.joined[node.name] = node
            self._nodes[node.name] = self.join.node(node.zone, node.address)

    def drop(self, name: str) -> None:
        """Remove a node."""
        self.joined.pop(name, None)
        self._nodes.pop(name, None)
