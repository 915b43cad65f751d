"""Servers that belong to somebody else: steered by the endpoint picker and KEDA, not run by us."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import Field

from services.kit.config.section import Address, Name, Section
from services.kit.errors import NotFound
from services.kit.hardware import gpu_types
from services.kit.mig import WHOLE

MOST_ADDRESSES: Final = 4096

Label = Annotated[
    str, Field(max_length=253, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$")
]
LabelValue = Annotated[
    str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")
]
MetricsPath = Annotated[str, Field(max_length=253, pattern=r"^(/[-A-Za-z0-9_.~/]*)?$")]
ObjectName = Annotated[str, Field(max_length=253, pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$")]


class ScaledObject(Section):
    """An object of Kubernetes whose number of servers the planner sets.

    Attributes:
        kind: Kind of the object. Of an InferenceService the bounds of the predictor are set.
        name: Its name.
        namespace: Its namespace. Empty: the planner's own.
    """

    kind: Literal["Deployment", "StatefulSet", "LeaderWorkerSet", "InferenceService"] = "Deployment"
    name: Annotated[ObjectName, Field(min_length=1)]
    namespace: ObjectName = ""


class ServerPool(Section):
    """Equal servers of the OpenAI API that run one variant.

    They are found by one of `addresses`, `inference_pool`, `selector` and `service`; without
    any, the pool is the server at the variant's `runtime.address`.

    Attributes:
        variant: The variant that they run.
        gpu: GPU type of each.
        slice: Slice of the GPU that each has; "whole": all of it.
        zone: Electricity zone.
        pue: Wall energy per device energy.
        addresses: "host:port" of each.
        inference_pool: Name of an InferencePool (Gateway API Inference Extension, v1): its selector
            and its first target port.
        selector: Labels of pods.
        service: Name of a Service: the endpoints of its EndpointSlices.
        namespace: Of `inference_pool`, `selector` or `service`. Empty: the router's own.
        port: Port at pods, for `selector`; of a Service with several, the one to use.
        scale: Object at which the planner sets the number of these servers. None: it sets none.
        metrics: Path of their metrics in Prometheus' format (vLLM, SGLang, llama.cpp, TGI), from
            which routers learn the requests of others and the use of the KV cache. Empty: it is
            not read.
        slots: Requests that each answers at a time; further ones wait in the router's queue.
        replicas_min: Least number of servers that the planner wants (KEDA). 0: none, while the
            model has no requests.
        replicas_max: Largest number that it wants.
    """

    variant: Name
    gpu: Name
    slice: Annotated[str, Field(min_length=1)] = WHOLE
    zone: Name
    pue: Annotated[float, Field(ge=1, le=10)] = 1.0
    addresses: Annotated[tuple[Address, ...], Field(max_length=MOST_ADDRESSES)] = ()
    inference_pool: ObjectName = ""
    selector: Annotated[dict[Label, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    service: ObjectName = ""
    namespace: ObjectName = ""
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    scale: ScaledObject | None = None
    metrics: MetricsPath = "/metrics"
    slots: Annotated[int, Field(ge=1, le=4096)] = 64
    replicas_min: Annotated[int, Field(ge=0, le=1000)] = 1
    replicas_max: Annotated[int, Field(ge=1, le=1000)] = 10

    @property
    def in_kubernetes(self) -> bool:
        """True if its servers are found through Kubernetes."""
        return bool(self.inference_pool or self.selector or self.service)

    def _problems(self) -> Iterator[str]:
        ways = ("addresses", "inference_pool", "selector", "service")
        given = [name for name in ways if getattr(self, name)]
        if len(given) > 1:
            yield f"{given[1]}: give one of {', '.join(ways)}, got {' and '.join(given)}"
        if self.selector and self.port is None:
            yield "port: required with selector: pods do not say which of their ports serves"
        if self.port is not None and not (self.selector or self.service):
            yield "port: only with selector or service"
        if self.namespace and not self.in_kubernetes:
            yield "namespace: only with inference_pool, selector or service"
        if self.replicas_min > self.replicas_max:
            yield f"replicas_min: at most replicas_max, {self.replicas_max}"
        try:
            table = gpu_types.load(self.gpu)
        except NotFound as error:
            yield f"gpu: {error.message}"
            return
        kinds = [kind.name for kind in (*table.geometry.kinds, *table.uncut.kinds)]
        if self.slice not in kinds:
            yield f"slice: must be one of {', '.join(dict.fromkeys(kinds))}, got {self.slice!r}"
