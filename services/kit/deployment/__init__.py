"""The one file that describes a deployment: `cinquefoil.yaml`, as types.

Every service reads the same file and uses its part. Unknown keys are refused; environment
variables `CINQUEFOIL_<SECTION>__<KEY>` override single values (see `services.kit.settings`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from services.kit.deployment.grid import (
    Carbon,
    Replay,
    Source,
    StaticSource,
    SyntheticSource,
    TraceSource,
    Zone,
)
from services.kit.deployment.model import (
    AnalyticProfile,
    ExternalRuntime,
    Model,
    OnnxRuntime,
    Profile,
    Runtime,
    Slo,
    TableProfile,
    Variant,
)
from services.kit.deployment.node import Mps, Node, Workers
from services.kit.deployment.planning import (
    Database,
    Dsn,
    Goals,
    Horizon,
    InfAdapter,
    LoadForecast,
    Objective,
    Online,
    Planner,
    Strategy,
    Triggers,
)
from services.kit.deployment.section import (
    Address,
    ClockRatio,
    Endpoint,
    Fraction,
    Name,
    NonNegative,
    Positive,
    Section,
    Tls,
)

__all__ = [
    "Address",
    "AnalyticProfile",
    "Carbon",
    "ClockRatio",
    "Database",
    "Deployment",
    "Dsn",
    "Endpoint",
    "ExternalRuntime",
    "Fraction",
    "Goals",
    "Horizon",
    "InfAdapter",
    "LoadForecast",
    "Model",
    "Mps",
    "Name",
    "Node",
    "NonNegative",
    "Objective",
    "Online",
    "OnnxRuntime",
    "Planner",
    "Positive",
    "Profile",
    "Replay",
    "Router",
    "Runtime",
    "Section",
    "Slo",
    "Source",
    "StaticSource",
    "Strategy",
    "SyntheticSource",
    "TableProfile",
    "Tls",
    "TraceSource",
    "Triggers",
    "Variant",
    "Workers",
    "Zone",
]


class Router(Endpoint):
    """The router service.

    Attributes:
        max_request_bytes: Largest request; larger ones get RESOURCE_EXHAUSTED.
        report_interval_s: How often load is reported to the planner, s.
        max_attempts: Workers a request may meet before it fails with UNAVAILABLE.
        default_timeout_s: Deadline of requests that bring none, s.
    """

    listen: Address = "127.0.0.1:8464"
    max_request_bytes: Annotated[int, Field(ge=1024)] = 16 * 2**20
    report_interval_s: Positive = 1.0
    max_attempts: Annotated[int, Field(ge=1)] = 5
    default_timeout_s: Positive = 30.0


class Deployment(Section):
    """The whole file."""

    version: Literal["v1"]
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    tls: Tls | None = None
    carbon: Carbon
    nodes: Annotated[dict[Name, Node], Field(min_length=1)]
    models: Annotated[dict[Name, Model], Field(min_length=1)]
    planner: Planner = Planner()
    router: Router = Router()

    @model_validator(mode="after")
    def _zones_exist(self) -> Deployment:
        for name, node in self.nodes.items():
            if node.zone not in self.carbon.zones:
                known = ", ".join(sorted(self.carbon.zones))
                raise ValueError(
                    f"nodes.{name}.zone: no zone {node.zone!r}; carbon.zones has {known}"
                )
        return self
