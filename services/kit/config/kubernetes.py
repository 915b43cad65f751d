"""Changes that the leading planner makes in the cluster that it runs in."""

from __future__ import annotations

from collections.abc import Iterator

from services.kit.config.section import Section
from services.kit.config.servers import ObjectName


class Kubernetes(Section):
    """Changes that the leading planner makes at the API server; each is a right of its own.

    Attributes:
        models_map: ConfigMap of the planner's namespace. The sections of the Model objects in the
            namespace are written to it, as `models.yaml`, which services mount as `models_file`;
            the objects get their status. Empty: Model objects are not followed.
        parked_nodes: Whether nodes that the plan leaves empty get the taint and the label
            "cinquefoil.io/parked", so that cluster autoscaler or Karpenter may take them away.
    """

    models_map: ObjectName = ""
    parked_nodes: bool = False

    def _problems(self) -> Iterator[str]:
        if not self.models_map and not self.parked_nodes:
            yield "models_map: give it, or parked_nodes, or leave the section out"
