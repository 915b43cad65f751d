"""Observed amounts as plain figures: for the table, the page, JSON, and advice."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from services.gpuagent.observation.core.ledger import GpuLedger
from services.gpuagent.observation.core.server_account import ServerAccount
from services.gpuagent.observation.observer import ObservedGpu, Observer
from services.kit.hardware.gpu_types import GpuModel


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """One GPU. `unattributed_j` is active energy of no known workload; see `GpuLedger`."""

    uuid: str
    index: int
    type: str
    product_name: str
    energy_j: float
    idle_j: float
    unattributed_j: float
    carbon_gco2e: float | None
    mean_w: float
    idle_w: float
    idle_is_measured: bool
    off_w: float
    busy: float
    parkable_s: float
    held_bytes: int
    memory_bytes: int
    method: str
    clock_ratio: float


@dataclass(frozen=True, slots=True)
class WorkloadFigures:
    """One workload on all GPUs; `idle_share_j` is part of the GPUs' idle energy."""

    name: str
    kind: str
    pod: str
    model: str
    gpus: tuple[int, ...]
    active_j: float
    idle_share_j: float
    carbon_gco2e: float | None
    methods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """One model of a server; None: the server does not say, or no GPU's energy is its."""

    url: str
    server: str
    model: str
    workload: str
    gpus: tuple[int, ...]
    requests: float | None
    prompt_tokens: float | None
    answer_tokens: float | None
    rate_rps: float | None
    tokens_per_s: float | None
    mean_running: float
    peak_running: float
    peak_waiting: float
    busy: float
    first_token_p95_s: float | None
    token_p95_s: float | None
    latency_p95_s: float | None
    active_j: float | None
    j_per_request: float | None
    j_per_token: float | None
    gco2e_per_request: float | None
    gco2e_per_1k_tokens: float | None
    shared_by: int


@dataclass(frozen=True, slots=True)
class Minute:
    """Amounts of one minute. Attributes: start (Unix time, s), amounts by quantity."""

    start_s: float
    amounts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that was observed.

    Attributes:
        since: When it began.
        observed_s: How long it was, s.
        electricity: Of which intensity emissions are, in words; "": not known.
        gco2e_per_kwh: Intensity at the end; None: not known.
        cpu_share: Processor time that observing took, over the time that passed.
        models: What each GPU is, by UUID: for advice, not for JSON.
    """

    since: datetime
    observed_s: float
    electricity: str
    gco2e_per_kwh: float | None
    cpu_share: float
    gpus: tuple[GpuFigures, ...]
    workloads: tuple[WorkloadFigures, ...]
    servers: tuple[ServerFigures, ...]
    minutes: tuple[Minute, ...]
    models: Mapping[str, GpuModel] = field(default_factory=dict)

    @property
    def energy_j(self) -> float:
        """Energy of all GPUs, J."""
        return sum(gpu.energy_j for gpu in self.gpus)


def collect(
    observer: Observer, since_s: float, electricity: str, intensity: float | None, cpu_s: float
) -> Figures:
    """Return the figures of an observer.

    Args:
        observer: The observer.
        since_s: When it began, Unix time, s.
        electricity: Of which intensity emissions are, in words.
        intensity: Carbon intensity now, gCO2e/kWh; None: not known.
        cpu_s: Processor time that observing took, s.
    """
    gpus = sorted(observer.gpus.values(), key=lambda gpu: gpu.info.index)
    observed_s = max((gpu.ledger.observed_s for gpu in gpus), default=0.0)
    return Figures(
        since=datetime.fromtimestamp(since_s, UTC),
        observed_s=observed_s,
        electricity=electricity,
        gco2e_per_kwh=intensity,
        cpu_share=cpu_s / observed_s if observed_s > 0 else 0.0,
        gpus=tuple(_gpu(each) for each in gpus),
        workloads=tuple(_workloads(observer, gpus)),
        servers=tuple(_servers(observer, gpus)),
        minutes=tuple(Minute(each.start_s, each.amounts) for each in observer.timeline.bins),
        models={gpu.info.uuid: gpu.info.model for gpu in gpus},
    )


def _gpu(gpu: ObservedGpu) -> GpuFigures:
    ledger, model = gpu.ledger, gpu.info.model
    has_context = bool(ledger.workloads)
    held = sum(each.memory_bytes for each in ledger.workloads.values())
    highest = max(model.max_clock_mhz, 1)
    return GpuFigures(
        uuid=gpu.info.uuid,
        index=gpu.info.index,
        type=model.name,
        product_name=model.product_name,
        energy_j=ledger.total_j,
        idle_j=ledger.idle_j,
        unattributed_j=ledger.unattributed_j,
        carbon_gco2e=_known(ledger, ledger.carbon_gco2e),
        mean_w=ledger.total_j / ledger.observed_s if ledger.observed_s else 0.0,
        idle_w=ledger.idle_w(has_context=has_context),
        idle_is_measured=ledger.idle_is_measured(has_context=has_context),
        off_w=ledger.idle_w(has_context=False),
        busy=ledger.busy_s / ledger.observed_s if ledger.observed_s else 0.0,
        parkable_s=ledger.parkable_s,
        held_bytes=held,
        memory_bytes=model.memory_bytes,
        method=gpu.method,
        clock_ratio=(gpu.info.clock_mhz or highest) / highest,
    )


def _known(ledger: GpuLedger, carbon_gco2e: float) -> float | None:
    """Return emissions where the intensity was known for all the energy, else None."""
    return carbon_gco2e if ledger.known_j >= 0.99 * ledger.total_j > 0 else None


def _workloads(observer: Observer, gpus: list[ObservedGpu]) -> Iterator[WorkloadFigures]:
    keys = dict.fromkeys(key for gpu in gpus for key in gpu.ledger.workloads)
    found = []
    for key in keys:
        held = [gpu for gpu in gpus if key in gpu.ledger.workloads]
        entries = [gpu.ledger.workloads[key] for gpu in held]
        known = all(_known(gpu.ledger, 0.0) is not None for gpu in held)
        workload = observer.workloads.get(key)
        found.append(
            WorkloadFigures(
                name=workload.name if workload else key,
                kind=key.partition(":")[0],
                pod=workload.pod if workload else "",
                model=workload.model if workload else "",
                gpus=tuple(gpu.info.index for gpu in held),
                active_j=sum(each.active_j for each in entries),
                idle_share_j=sum(each.idle_share_j for each in entries),
                carbon_gco2e=sum(each.carbon_gco2e for each in entries) if known else None,
                methods=tuple(dict.fromkeys(each.method for each in entries)),
            )
        )
    yield from sorted(found, key=lambda each: -each.active_j - each.idle_share_j)


def _servers(observer: Observer, gpus: list[ObservedGpu]) -> Iterator[ServerFigures]:
    for server in observer.servers.values():
        held = [gpu for gpu in gpus if server.workload in gpu.ledger.workloads]
        entries = [gpu.ledger.workloads[server.workload] for gpu in held]
        sharing = sum(
            len(other.accounts)
            for other in observer.servers.values()
            if other.workload == server.workload
        )
        known = bool(held) and all(_known(gpu.ledger, 0.0) is not None for gpu in held)
        active_j = sum(each.active_j for each in entries) if held else None
        carbon = sum(each.carbon_gco2e for each in entries) if known else None
        workload = observer.workloads.get(server.workload)
        for account in server.accounts.values():
            yield _server(
                account,
                url=server.url,
                workload=workload.name if workload else "",
                model=account.model or (workload.model if workload else ""),
                gpus=tuple(gpu.info.index for gpu in held),
                active_j=active_j if sharing == 1 else None,
                carbon=carbon if sharing == 1 else None,
                shared_by=sharing,
            )


def _server(  # noqa: PLR0913 - of three sources
    account: ServerAccount,
    *,
    url: str,
    workload: str,
    model: str,
    gpus: tuple[int, ...],
    active_j: float | None,
    carbon: float | None,
    shared_by: int,
) -> ServerFigures:
    counts, times = account.counts, account.times
    requests, tokens = counts.get("requests"), counts.get("answer_tokens")

    def p95(name: str) -> float | None:
        return times[name].quantile(0.95) if name in times else None

    def per(amount: float | None, count: float | None, scale: float = 1.0) -> float | None:
        return scale * amount / count if amount is not None and count else None

    return ServerFigures(
        url=url,
        server=account.server,
        model=model,
        workload=workload,
        gpus=gpus,
        requests=requests,
        prompt_tokens=counts.get("prompt_tokens"),
        answer_tokens=tokens,
        rate_rps=account.rate("requests"),
        tokens_per_s=account.rate("answer_tokens"),
        mean_running=account.mean_running,
        peak_running=account.peak_running,
        peak_waiting=account.peak_waiting,
        busy=account.busy_s / account.observed_s if account.observed_s else 0.0,
        first_token_p95_s=p95("first_token"),
        token_p95_s=p95("token"),
        latency_p95_s=p95("latency"),
        active_j=active_j,
        j_per_request=per(active_j, requests),
        j_per_token=per(active_j, tokens),
        gco2e_per_request=per(carbon, requests),
        gco2e_per_1k_tokens=per(carbon, tokens, 1000.0),
        shared_by=shared_by,
    )
