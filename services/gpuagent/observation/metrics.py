"""Metrics of observed workloads and servers, read at each scrape."""

from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.gpuagent.observation.core.server_account import ServerAccount
from services.gpuagent.observation.observer import ObservedServer, Observer

_WORKLOAD: Final = ("gpu_uuid", "workload", "pod", "model", "method")
_SERVER: Final = ("server", "model", "workload", "pod", "url")


class ObservationCollector(Collector):
    """Energy of workloads that others started, and the figures of their servers.

    Args:
        observer: The observer; None: nothing is observed.
    """

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer

    def collect(self) -> Iterable[Metric]:
        """Yield the values as they are now."""
        yield from self._energy()
        yield from self._servers()

    def _energy(self) -> Iterator[Metric]:
        active = CounterMetricFamily(
            "cinquefoil_observed_energy_joules",
            "Active energy attributed to a workload that Cinquefoil did not start. Method: "
            "process_utilization, instance_utilization, slices_held (docs/observe.md).",
            labels=_WORKLOAD,
        )
        idle = CounterMetricFamily(
            "cinquefoil_observed_idle_share_joules",
            "Idle energy shared to an observed workload by the memory that it holds; a part of "
            "the GPU's idle energy, never of active energy.",
            labels=_WORKLOAD,
        )
        unattributed = CounterMetricFamily(
            "cinquefoil_observed_unattributed_joules",
            "Active energy of a GPU that no observed process explains.",
            labels=("gpu_uuid",),
        )
        power = GaugeMetricFamily(
            "cinquefoil_observed_idle_watts",
            "Power of a GPU while nothing computes on it, measured, or else its type's.",
            labels=("gpu_uuid", "measured"),
        )
        for uuid, gpu in self._observer.gpus.items() if self._observer else ():
            ledger = gpu.ledger
            unattributed.add_metric((uuid,), ledger.unattributed_j)
            held = bool(ledger.workloads)
            measured = str(ledger.idle_is_measured(has_context=held)).lower()
            power.add_metric((uuid, measured), ledger.idle_w(has_context=held))
            for key, entry in dict(ledger.workloads).items():
                labels = (uuid, *self._named(key), entry.method)
                active.add_metric(labels, entry.active_j)
                idle.add_metric(labels, entry.idle_share_j)
        yield from (active, idle, unattributed, power)

    def _named(self, key: str) -> tuple[str, str, str]:
        """Return name, pod and model of a workload."""
        found = self._observer.workloads.get(key) if self._observer else None
        return (found.name, found.pod, found.model) if found else (key, "", "")

    def _servers(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "cinquefoil_observed_requests", "Requests of an observed server.", labels=_SERVER
        )
        tokens = CounterMetricFamily(
            "cinquefoil_observed_tokens",
            "Tokens of an observed server. Kind: prompt, answer.",
            labels=(*_SERVER, "kind"),
        )
        running = GaugeMetricFamily(
            "cinquefoil_observed_running_requests",
            "Mean requests in progress at an observed server while there are any.",
            labels=_SERVER,
        )
        busy = CounterMetricFamily(
            "cinquefoil_observed_busy_seconds",
            "Time in which an observed server had requests in progress.",
            labels=_SERVER,
        )
        for server in list(self._observer.servers.values()) if self._observer else ():
            for labels, account in self._accounts(server):
                if "requests" in account.counts:
                    requests.add_metric(labels, account.counts["requests"])
                for kind in ("prompt", "answer"):
                    if f"{kind}_tokens" in account.counts:
                        tokens.add_metric((*labels, kind), account.counts[f"{kind}_tokens"])
                running.add_metric(labels, account.mean_running)
                busy.add_metric(labels, account.busy_s)
        yield from (requests, tokens, running, busy)

    def _accounts(self, server: ObservedServer) -> Iterator[tuple[tuple[str, ...], ServerAccount]]:
        name, pod, model = self._named(server.workload)
        for account in list(server.accounts.values()):
            yield (account.server, account.model or model, name, pod, server.url), account
