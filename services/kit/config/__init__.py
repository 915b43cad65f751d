"""The one file that describes a deployment: `cinquefoil.yaml`, as types.

Every service reads the same file and uses its part. Unknown keys are refused; environment
variables `CINQUEFOIL_<SECTION>__<KEY>` override single values (see `services.kit.config.loader`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from services.kit.config.access import (
    Access,
    ClientTls,
    ExpectedServer,
    Principal,
    Role,
    Tls,
    Tokens,
)
from services.kit.config.batch import BatchService
from services.kit.config.grid import Grid, OpenAdr, grid_problems
from services.kit.config.kubernetes import Kubernetes
from services.kit.config.models import (
    AnalyticProfile,
    Discipline,
    ExternalRuntime,
    GenerativeRuntime,
    InstanceChoice,
    LanguageProfile,
    MeasuredSteps,
    Model,
    ModelCache,
    ModelFile,
    OnnxRuntime,
    OpenAiRuntime,
    Parallel,
    Profile,
    RequestLimits,
    Runtime,
    ServerRuntime,
    Sleep,
    Slo,
    Spread,
    TableProfile,
    TextRuntime,
    Variant,
)
from services.kit.config.mqtt import Mqtt, PowerMeters
from services.kit.config.nodes import Cpu, Join, Mps, Node, SteeredServer, ThisNode, Workers
from services.kit.config.planning import (
    Accounting,
    AccuracyMean,
    CarbonBudget,
    Embodied,
    Goals,
    Horizon,
    InfAdapter,
    LoadForecast,
    MaintenanceWindow,
    Objective,
    Online,
    PlacementRule,
    Planner,
    Strategy,
    Triggers,
    budget_problems,
)
from services.kit.config.predictor import Predictor, PromptCache
from services.kit.config.regions import PeerRegion, Regions
from services.kit.config.section import (
    Address,
    Endpoint,
    Fraction,
    Name,
    NonNegative,
    Positive,
    Section,
)
from services.kit.config.servers import ServerPool
from services.kit.config.sites import Site, site_problems
from services.kit.config.zones import Carbon, Replay, Zone
from services.kit.net import is_loopback


class Quota(Section):
    """Request quota of a client.

    Attributes:
        in_flight: Requests at a time. None: any number.
        rate_rps: Requests per second in the long run. None: any number.
        burst: Requests that may come at once.
    """

    in_flight: Annotated[int, Field(ge=1)] | None = None
    rate_rps: Positive | None = None
    burst: Annotated[int, Field(ge=1)] = 1


class DispatchRules(Section):
    """Rules of every model's requests.

    Attributes:
        max_attempts: Workers a request may meet before it fails with UNAVAILABLE.
        fair_clients: While a model is under pressure, its clients take turns.
        retry_share: Requests that may be given to another worker because theirs failed, per
            request of the model, 0..1.
        retry_burst: And so many more at once.
    """

    max_attempts: Annotated[int, Field(ge=1)] = 5
    fair_clients: bool = True
    retry_share: Fraction = 0.1
    retry_burst: Annotated[int, Field(ge=0)] = 100


class WaitingRules(Section):
    """Rules of requests that can wait: of batches, of the service tier "flex", with `wait_until`.

    Attributes:
        max_requests: Largest number of them that one router process holds at a time, those that
            workers have included; they take no part of the bounds of other requests.
        max_mib: Size of all that no worker has, MiB.
        timeout_s: Time after which one that names no time is given up, s.
        headroom: Share of an objective that other requests may be given while these run beside
            them.
        patience_s: Longest time for which they are collected, where an instance has few other
            requests: it takes little more energy for many than for one, s.
    """

    max_requests: Annotated[int, Field(ge=1)] = 4096
    max_mib: Positive = 256.0
    timeout_s: Annotated[float, Field(gt=0, le=604_800)] = 600.0
    headroom: Annotated[float, Field(ge=0.1, le=0.95)] = 0.7
    patience_s: Annotated[float, Field(ge=0)] = 5.0


class Router(Endpoint, DispatchRules):
    """The router service.

    Attributes:
        http_listen: "host:port" for HTTP: the Open Inference Protocol and the OpenAI API; empty:
            none, which is the default where `listen` is given. Under TLS callers show a
            certificate or, with access.tokens, a token.
        processes: How many listen on the port; the kernel gives each connection to one of them.
            Their metrics are at `metrics`, the next port, and so on.
        max_request_bytes: Largest request; larger ones get RESOURCE_EXHAUSTED.
        max_stream_requests: Requests of one ModelStreamInfer call that may be open at a time; the
            next is read when an answer has left.
        compression: Of answers, where the client takes it.
        report_interval_s: How often load is reported to the planner, s.
        worker_dead_after_s: A worker that shows no life for so long is given up, s; what it held
            goes to another.
        max_queue_mib: Size of all requests that may wait, over all models, MiB.
        default_timeout_s: Deadline of requests that bring none, s.
        slo_windows_s: Stretches of time over which the metrics judge the objective, s.
        max_requests: Largest number of calls at a time; further ones get RESOURCE_EXHAUSTED. One
            ModelStreamInfer call counts once.
        max_connections: Largest number of connections; further ones are closed.
        quotas: By client: its identity, or a prefix that ends in "*" (the longest counts). Without
            certificates the identity is "id:" and its `x-client-id`, or "ipv4:" and its host.
        waiting: Requests that can wait: a class below all others.
        token_listen: A second port, for inference clients that show a token (access.tokens)
            instead of a certificate; empty: none.
        picker_listen: "host:port" where Envoy learns which server of a model with `servers` takes a
            request (ext_proc); empty: nowhere. Callers have the role gateway.
        picker_connection_requests: Requests of one connection of Envoy that may be open at a time:
            each is a call for as long as its answer lasts.
        routing_file: Where the last routing table is kept: a router that restarts serves by it
            until a planner answers. Each router needs its own. Unset: it waits for a planner.
    """

    listen: Address = "127.0.0.1:8464"
    http_listen: Address = "127.0.0.1:8466"
    processes: Annotated[int, Field(ge=1, le=256)] = 1
    # 2 GiB is gRPC's limit for a message: a request and the router's fields.
    max_request_bytes: Annotated[int, Field(ge=1024, le=2046 * 2**20)] = 16 * 2**20
    max_stream_requests: Annotated[int, Field(ge=1)] = 256
    compression: Literal["none", "deflate", "gzip"] = "none"
    report_interval_s: Positive = 1.0
    worker_dead_after_s: Annotated[float, Field(ge=2)] = 4.0
    max_queue_mib: Positive = 1024.0
    default_timeout_s: Positive = 30.0
    slo_windows_s: Annotated[tuple[Positive, ...], Field(min_length=1)] = (
        300.0,
        1800.0,
        3600.0,
        21600.0,
    )
    max_requests: Annotated[int, Field(ge=1)] = 65_536
    max_connections: Annotated[int, Field(ge=1)] = 16_384
    max_connection_requests: Annotated[int, Field(ge=1)] = 4096
    quotas: dict[Principal, Quota] = Field(default_factory=dict)
    waiting: WaitingRules = Field(default_factory=WaitingRules)
    token_listen: Address = ""
    picker_listen: Address = ""
    picker_connection_requests: Annotated[int, Field(ge=1)] = 65_536
    routing_file: Path | None = None

    @property
    def worker_message_bytes(self) -> int:
        """Largest message between routers and workers."""
        return max(self.max_request_bytes + 2**20, 64 * 2**20)

    @model_validator(mode="before")
    @classmethod
    def _http_at_its_own_address(cls, given: Any) -> Any:
        """Serve no HTTP by default where `listen` is given: two routers would share the port."""
        if isinstance(given, dict) and "listen" in given and "http_listen" not in given:
            return {**given, "http_listen": ""}
        return given


class WebConsole(Section):
    """Pages that show the deployment: `cinquefoil console serve`, and part of `cinquefoil up`.

    Attributes:
        listen: "host:port" of the pages (HTTP). Empty: none.
        token_file: Who may see them, a line "NAME TOKEN" each; made, with one line, where it does
            not exist. None: every user of this machine.
        allow_changes: The pages can apply, pin and roll back plans and change the objective, in the
            name of the token's owner. Needs token_file.
    """

    listen: Address = "127.0.0.1:8467"
    token_file: Path | None = None
    allow_changes: bool = False

    def _problems(self) -> Iterator[str]:
        if self.allow_changes and self.token_file is None:
            yield "allow_changes: give token_file, so that every change has an author"


class Rpc(Section):
    """Transport of requests.

    Attributes:
        transport: Of the router's and the planner's clients, and of the router and the workers:
            "own" is HTTP/2 on the service's event loop; "grpcio" gRPC's C core, some times slower.
    """

    transport: Literal["own", "grpcio"] = "own"


class Deployment(Section):
    """The whole file.

    Attributes:
        version: Version of the file's format.
        log_level: Least severity that the services log.
        tls: Certificates of services, workers and operators. None: plaintext, on this machine only.
        access: Which identities may make which calls. None: every caller on this machine.
        carbon: The carbon service, and the grid zones.
        nodes: Machines by name, and the agents on them.
        join: Lets agents join that are not in `nodes`. None: no other joins.
        node: What such an agent says of its node.
        models: Models by name, which clients give as `model_name`.
        models_file: File of further models, each below its name as in `models`. A file that is not
            there has none.
        model_cache: Where files of models that have a `uri` lie on each machine.
        sites: Nodes behind one electricity feed, by name, and the power that they may draw.
        grid: Grid events, in which sites may draw less.
        planner: The planner service: strategy, objective, and when it plans again.
        router: The router service, which answers inference requests.
        rpc: How requests are carried.
        predictor: The service that predicts lengths of answers. None: there is none.
        batch: The service that answers requests that can wait. None: there is none.
        regions: This region and its peers. None: there is one region.
        console: Pages in a browser.
        mqtt: The broker that intensities come from and plans are published to. None: there is none.
        source: The file that it was read from; None: it was not.
        digest: Of what the file says; "": it was not read from one.
    """

    version: Literal["v1"]
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    tls: Tls | None = None
    access: Access | None = None
    carbon: Carbon
    nodes: dict[Name, Node] = Field(default_factory=dict)
    join: Join | None = None
    node: ThisNode = ThisNode()
    models: dict[Name, Model] = Field(default_factory=dict)
    models_file: Path | None = None
    model_cache: ModelCache = ModelCache()
    sites: dict[Name, Site] = Field(default_factory=dict)
    grid: Grid = Grid()
    planner: Planner = Planner()
    router: Router = Router()
    rpc: Rpc = Rpc()
    predictor: Predictor | None = None
    batch: BatchService | None = None
    regions: Regions | None = None
    console: WebConsole = WebConsole()
    mqtt: Mqtt | None = None

    _source: Path | None = PrivateAttr(default=None)
    _digest: str = PrivateAttr(default="")

    @property
    def source(self) -> Path | None:
        """The file that it was read from."""
        return self._source

    @property
    def digest(self) -> str:
        """Digest of what the file says, without the environment's overrides."""
        return self._digest

    def read_from(self, source: Path | None, digest: str) -> Deployment:
        """Record the file that it was read from; return the deployment."""
        self._source, self._digest = source, digest
        return self

    def identity(self, service: str, node: str = "") -> Tls | None:
        """Return the certificates of one service; None: plaintext.

        Args:
            service: planner, router, carbon, predictor, agent, worker or operator.
            node: The node of an agent or worker.
        """
        return None if self.tls is None else self.tls.of(service, node)

    def path_of(self, network: ModelFile) -> Path:
        """Return the path, on each node, of a file that workers load."""
        return self.model_cache.path(network) if network.uri else network.file

    @property
    def principals(self) -> Mapping[str, tuple[str, ...]] | None:
        """Patterns of identities by role; None: every caller may do everything."""
        access = self.access or Access()
        if access.insecure or (self.tls is None and access.tokens is None):
            return None
        shared = () if self.join is None else self.join.identities
        return {**access.principals, "agent": (*access.principals["agent"], *shared)}

    def expected(self, role: Role, node: str = "") -> ExpectedServer | None:
        """Return what a server of this role must show; None: no certificate is checked for it.

        Args:
            role: planner, router, carbon, predictor, agent or worker.
            node: The node that an agent must be of; "": any.
        """
        principals = self.principals
        if principals is None or self.tls is None:
            return None
        lent = () if self.join is None else self.join.identities
        return ExpectedServer(role, principals[role], node, lent)

    @property
    def node_zones(self) -> frozenset[str]:
        """Zones of all nodes, including those that may still join."""
        if self.join is not None:
            return frozenset(self.carbon.zones)
        pools = (pool.zone for _, pool in self._server_pools())
        return frozenset((*(node.zone for node in self.nodes.values()), *pools))

    def joined(self, name: str, zone: str, address: str) -> Deployment:
        """Return the deployment with a joining node added to its nodes.

        Args:
            name: Its name.
            zone: Its electricity zone.
            address: "host:port" of its agent.

        Raises:
            ValueError: No node may join.
        """
        if self.join is None:
            raise ValueError("join: no node may join")
        nodes = {**self.nodes, name: self.join.node(zone, address)}
        return self.model_copy(update={"nodes": nodes})

    def _problems(self) -> Iterator[str]:
        if not self.models and self.models_file is None:
            yield "models: needs at least 1"
        kubernetes = self.planner.kubernetes
        if kubernetes is not None and kubernetes.models_map and self.models_file is None:
            yield "planner.kubernetes.models_map: needs models_file, which services read"
        if not self.nodes and self.join is None:
            yield "nodes: give one, or join, so that agents announce themselves"
        if self.access is None or not self.access.insecure:
            yield from self._open_listeners()
            yield from self._open_console()
            yield from self._open_servers()
        yield from self._shared_mps()
        tokens = None if self.access is None else self.access.tokens
        if self.router.token_listen and tokens is None:
            yield "router.token_listen: give access.tokens, or no client is let in"
        if tokens is not None and not self.router.token_listen:
            yield "access.tokens: give router.token_listen, where they are shown"
        yield from self._missing_zones()
        yield from site_problems(self.sites, self.nodes, others_join=self.join is not None)
        yield from grid_problems(self.grid, self.sites, self.carbon.zones)
        yield from budget_problems(self.planner.carbon_budgets, self.models, self.sites)
        if self.grid.mqtt and self.mqtt is None:
            yield "grid.mqtt: needs mqtt.broker, where events are published"
        yield from self._servers_without_picker()
        for name, zone in self.carbon.zones.items():
            if self.mqtt is None and any(source.kind == "mqtt" for source in zone.sources):
                yield f"carbon.zones.{name}.source: a topic needs a broker: give mqtt"
        yield from self._mixed_signals()

    def _open_listeners(self) -> Iterator[str]:
        """Require identities of every server that listens beyond this machine."""
        if self.access is not None and self.access.roles and self.tls is None:
            yield "access.roles: identities come from certificates: give tls"
        for where, address in self._listeners():
            if not address or is_loopback(address):
                continue
            if self.tls is None or self.access is None:
                missing = "tls and access" if self.tls is None else "access"
                yield (
                    f"{where}: {address} listens beyond this machine: give {missing}, or say "
                    "access: {insecure: true}, and every caller may do everything"
                )
            elif not self.tls.require_client_certificate:
                yield (
                    "tls.require_client_certificate: must be true, for "
                    f"{where} listens beyond this machine; clients without certificates show a "
                    "token at router.token_listen"
                )

    def _listeners(self) -> Iterator[tuple[str, str]]:
        services: dict[str, Endpoint | None] = {
            "carbon": self.carbon,
            "planner": self.planner,
            "router": self.router,
            "predictor": self.predictor,
            **dict(self._node_sections()),
        }
        for where, endpoint in services.items():
            if endpoint is not None:
                yield f"{where}.listen", endpoint.listen
                yield f"{where}.metrics", endpoint.metrics
        yield "router.token_listen", self.router.token_listen
        yield "router.http_listen", self.router.http_listen
        yield "router.picker_listen", self.router.picker_listen
        for name, node in self.nodes.items():
            yield f"nodes.{name}.worker_host", f"{node.worker_host}:0"

    def _node_sections(self) -> Iterator[tuple[str, Node]]:
        for name, node in self.nodes.items():
            yield f"nodes.{name}", node
        if self.join is not None:
            yield "join", self.join

    def _open_console(self) -> Iterator[str]:
        address = self.console.listen
        if address and not is_loopback(address) and not self.console.token_file:
            yield (
                f"console.listen: {address} is beyond this machine: give console.token_file, or "
                "say access: {insecure: true}, and every caller may see everything"
            )

    def _open_servers(self) -> Iterator[str]:
        """Require encryption of requests that leave this machine."""
        for model, settings in self.models.items():
            for name, variant in settings.variants.items():
                runtime = variant.runtime
                if not isinstance(runtime, ServerRuntime) or runtime.tls is not None:
                    continue
                if runtime.address and not is_loopback(runtime.address):
                    yield (
                        f"models.{model}.variants.{name}.runtime.address: {runtime.address} is "
                        "beyond this machine: give tls, or say access: {insecure: true}"
                    )

    def _shared_mps(self) -> Iterator[str]:
        for name, node in self._node_sections():
            real = node.simulated is None and node.cpu is None
            if node.worker_user is not None and real and self.planner.max_processes > 1:
                yield (
                    f"{name}.worker_user: only the agent's own user reaches its MPS daemons: "
                    "set planner.max_processes: 1"
                )

    def _missing_zones(self) -> Iterator[str]:
        for name, node in self._node_sections():
            if node.zone not in self.carbon.zones and node.zone:
                known = ", ".join(sorted(self.carbon.zones))
                yield f"{name}.zone: no zone {node.zone!r}; carbon.zones has {known}"
        for where, pool in self._server_pools():
            if pool.zone not in self.carbon.zones:
                known = ", ".join(sorted(self.carbon.zones))
                yield f"{where}.zone: no zone {pool.zone!r}; carbon.zones has {known}"

    def _server_pools(self) -> Iterator[tuple[str, ServerPool]]:
        for model, settings in self.models.items():
            for name, pool in settings.servers.items():
                yield f"models.{model}.servers.{name}", pool

    def _servers_without_picker(self) -> Iterator[str]:
        """Require servers where the router listens for a gateway."""
        if self.router.picker_listen and not any(self._server_pools()):
            yield "router.picker_listen: no model has servers to choose from: give models.*.servers"

    def _mixed_signals(self) -> Iterator[str]:
        """Require one signal of all nodes, as their carbon is added and compared."""
        by_signal: dict[str, str] = {}
        zones = {f"nodes.{name}.zone": node.zone for name, node in self.nodes.items()}
        zones |= {f"{where}.zone": pool.zone for where, pool in self._server_pools()}
        if self.join is not None:  # nodes may join in any zone
            zones |= {f"carbon.zones.{zone}": zone for zone in self.carbon.zones}
        for where, zone in zones.items():
            signal = self.carbon.zones[zone].signal
            if signal == "percentile":
                yield (
                    f"{where}: {zone} has percentiles, which are ranks: no carbon "
                    "can be computed from them; choose a zone of average or marginal intensity"
                )
            by_signal[signal] = where.split(".")[-2] if where.endswith(".zone") else where
        if len(by_signal) > 1:
            kinds = " and ".join(f"{node} {signal}" for signal, node in sorted(by_signal.items()))
            yield f"nodes: {kinds} are never added; choose zones of one signal"
