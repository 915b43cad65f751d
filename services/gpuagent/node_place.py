"""One node of the deployment file, and the folder of its state."""

import socket
from dataclasses import dataclass
from pathlib import Path

from services.kit.config import Deployment, Node
from services.kit.errors import InvalidArgument
from services.kit.net import is_loopback, split_address

_MOST_CHARACTERS = 300  # of a file's: no zone has as many
_EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - nothing is bound here


@dataclass(frozen=True, slots=True)
class NodePlace:
    """One node of the deployment, and its folder.

    Attributes:
        name, settings: The deployment's.
        folder: Where its state is.
        others: Whether the deployment has other nodes that plans may use.
    """

    name: str
    settings: Node
    folder: Path
    others: bool = False


def place_of(deployment: Deployment, name: str) -> NodePlace:
    """Return a node's place.

    Args:
        deployment: The whole deployment file.
        name: The node's; "": the only one's.

    Raises:
        InvalidArgument: No such node.
    """
    names = sorted(deployment.nodes)
    if not name and len(names) == 1:
        name = names[0]
    if name not in deployment.nodes:
        raise InvalidArgument(f"node must be one of {', '.join(names)}, got {name!r}", field="node")
    settings = deployment.nodes[name]
    others = deployment.join is not None or any(
        node.controlled for other, node in deployment.nodes.items() if other != name
    )
    return NodePlace(name, settings, settings.state_dir.absolute() / name, others)


def joining(deployment: Deployment, name: str = "") -> tuple[Deployment, str]:
    """Return the deployment with the node of an agent that joins, and its name.

    Args:
        deployment: The deployment file, with `join`; `node` says which node this is.
        name: Of the node; "": as `node.name` has it, or the machine's host name.

    Raises:
        InvalidArgument: No node may join, or its name, address or zone is missing or cannot be.
    """
    join, here = deployment.join, deployment.node
    if join is None:
        raise InvalidArgument.at(
            "join", "the deployment file has no such section: no node may join"
        )
    name = name or here.name or socket.gethostname()
    if name in deployment.nodes:
        raise InvalidArgument.at("node.name", f"{name} is in the deployment file: leave --join out")
    if not join.permits(name):
        allowed = ", ".join(join.names)
        raise InvalidArgument.at("node.name", f"join.names has {allowed}, got {name!r}")
    zone = here.zone or (here.zone_file and _written(here.zone_file))
    zone = zone or join.zone_of_topology.get(here.topology_zone, join.zone)
    address = here.address or join.listen
    if zone not in deployment.carbon.zones:
        known = ", ".join(sorted(deployment.carbon.zones))
        raise InvalidArgument.at(
            "node.zone",
            f"must be one of carbon.zones, {known}; got {zone!r} (CINQUEFOIL_NODE__ZONE,"
            " the file of CINQUEFOIL_NODE__ZONE_FILE, join.zone_of_topology of"
            f" {here.topology_zone!r}, or join.zone)",
        )
    if split_address(address)[0] in _EVERY_ADDRESS:
        raise InvalidArgument.at(
            "node.address",
            f"required, since others cannot dial {address}: give CINQUEFOIL_NODE__ADDRESS",
        )
    if is_loopback(join.listen) and not is_loopback(address):
        raise InvalidArgument.at(
            "node.address",
            f"{address} is not where the agent listens: join.listen is {join.listen}",
        )
    return deployment.joined(name, zone, address), name


def _written(path: Path) -> str:
    """Return the zone that a file has."""
    try:
        with path.open() as file:
            return file.read(_MOST_CHARACTERS).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument.at("node.zone_file", f"cannot be read: {error}") from error
