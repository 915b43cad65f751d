"""One node of the deployment file, and the folder of its state."""

from dataclasses import dataclass
from pathlib import Path

from services.kit.config import Deployment, Node
from services.kit.errors import InvalidArgument


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
    others = any(node.controlled for other, node in deployment.nodes.items() if other != name)
    return NodePlace(name, settings, settings.state_dir.absolute() / name, others)
