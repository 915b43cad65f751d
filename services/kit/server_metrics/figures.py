"""Figures of inference servers from their own Prometheus metrics. Pure.

Names as the servers document them (2026): vLLM, SGLang, llama.cpp's server, Text Generation
Inference, Triton, Ray Serve, KServe's Python servers. Of names that a server has changed, the newer
one comes first.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from services.kit.server_metrics.exposition import Series, read

MAX_MODELS: Final = 64
"""Models of one server; further ones are left out."""

MAX_BUCKETS: Final = 128
_NAME_LENGTH: Final = 200


@dataclass(frozen=True, slots=True)
class ServerKind:
    """The metrics of one kind of server; (): it has no such.

    Attributes:
        name: Of the server.
        prefix: With which all its metrics begin.
        model_label: Label that names the model; "": none does.
        requests, prompt_tokens, answer_tokens: Counters.
        items, batches, computed_us: Counters of a server that answers in batches: items of all
            requests, batches, and the batches' times summed over requests, us.
        running, waiting: Gauges.
        kv_use: Gauge of the share of the KV cache that is used; llama.cpp's keeps old prompts.
        first_token, token, latency: Histograms of times, s.
    """

    name: str
    prefix: str
    model_label: str
    requests: tuple[str, ...] = ()
    prompt_tokens: tuple[str, ...] = ()
    answer_tokens: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    batches: tuple[str, ...] = ()
    computed_us: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    kv_use: tuple[str, ...] = ()
    first_token: tuple[str, ...] = ()
    token: tuple[str, ...] = ()
    latency: tuple[str, ...] = ()


KINDS: Final = (
    ServerKind(
        name="vLLM",
        prefix="vllm:",
        model_label="model_name",
        requests=("vllm:request_success_total",),
        prompt_tokens=("vllm:prompt_tokens_total",),
        answer_tokens=("vllm:generation_tokens_total",),
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        kv_use=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        first_token=("vllm:time_to_first_token_seconds",),
        token=("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        latency=("vllm:e2e_request_latency_seconds",),
    ),
    ServerKind(
        name="SGLang",
        prefix="sglang:",
        model_label="model_name",
        requests=("sglang:num_requests_total",),
        prompt_tokens=("sglang:prompt_tokens_total",),
        answer_tokens=("sglang:generation_tokens_total",),
        running=("sglang:num_running_reqs",),
        waiting=("sglang:num_queue_reqs",),
        kv_use=("sglang:token_usage",),
        first_token=("sglang:time_to_first_token_seconds",),
        token=("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        latency=("sglang:e2e_request_latency_seconds",),
    ),
    ServerKind(
        name="llama.cpp",
        prefix="llamacpp:",
        model_label="",
        prompt_tokens=("llamacpp:prompt_tokens_total",),
        answer_tokens=("llamacpp:tokens_predicted_total",),
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
    ),
    ServerKind(
        name="TGI",
        prefix="tgi_",
        model_label="",
        requests=("tgi_request_success",),
        prompt_tokens=("tgi_request_input_length_sum",),
        answer_tokens=("tgi_request_generated_tokens_sum",),
        running=("tgi_batch_current_size",),
        waiting=("tgi_queue_size",),
        token=("tgi_request_mean_time_per_token_duration",),
        latency=("tgi_request_duration",),
    ),
    ServerKind(
        name="Triton",
        prefix="nv_inference_",
        model_label="model",
        requests=("nv_inference_request_success",),
        items=("nv_inference_count",),
        batches=("nv_inference_exec_count",),
        computed_us=("nv_inference_compute_infer_duration_us",),
        waiting=("nv_inference_pending_request_count",),
    ),
    ServerKind(
        name="Ray Serve",
        prefix="ray_serve_",
        model_label="deployment",
        requests=("ray_serve_deployment_request_counter_total",),
        running=("ray_serve_replica_processing_queries",),
    ),
    ServerKind(
        name="KServe",
        prefix="request_predict_seconds",
        model_label="model_name",
        requests=("request_predict_seconds_count",),
        latency=("request_predict_seconds",),
    ),
)


def names_of(*quantities: str) -> tuple[str, ...]:
    """Return the names that quantities have, of all kinds of servers."""
    return tuple(name for kind in KINDS for each in quantities for name in getattr(kind, each))


_LOAD_NAMES: Final = names_of("running", "waiting", "kv_use")
_FULL_KV: Final = 0.95
"""Use of the KV cache from which a server that has a queue starts no further request."""

PREFIXES: Final = tuple(kind.prefix for kind in KINDS)
_COUNTERS: Final = (
    *("requests", "prompt_tokens", "answer_tokens", "items", "batches", "computed_us"),
    *("running", "waiting"),
)
_TIMES: Final = ("first_token", "token", "latency")


@dataclass(frozen=True, slots=True)
class Histogram:
    """A histogram. Attributes: count, total_s, buckets (upper bound, s: count up to it)."""

    count: float = 0.0
    total_s: float = 0.0
    buckets: Mapping[float, float] = field(default_factory=dict)

    def since(self, before: "Histogram") -> "Histogram":
        """Return what came since; all of it where the server was restarted."""
        if self.count < before.count:
            return self
        buckets = {
            bound: max(count - before.buckets.get(bound, 0.0), 0.0)
            for bound, count in self.buckets.items()
        }
        total_s = max(self.total_s - before.total_s, 0.0)
        return Histogram(self.count - before.count, total_s, buckets)

    @property
    def mean_s(self) -> float | None:
        """Mean, s; None: nothing was counted."""
        return self.total_s / self.count if self.count > 0 else None

    def quantile(self, share: float) -> float | None:
        """Return a quantile by interpolation, as Prometheus' `histogram_quantile`, s.

        None: nothing was counted, or the quantile is beyond the last finite bound.
        """
        wanted, below, low_s = share * self.count, 0.0, 0.0
        if wanted <= 0:
            return None
        for bound_s in sorted(self.buckets):
            count = self.buckets[bound_s]
            if count >= wanted:
                if math.isinf(bound_s):
                    return None
                inside = count - below
                part = (wanted - below) / inside if inside > 0 else 1.0
                return low_s + (bound_s - low_s) * part
            below, low_s = count, bound_s
        return None


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """Figures of one model of a server, as its page has them; None: it has no such.

    Attributes:
        server: Kind of the server.
        model: The model's name; "": the page does not say.
        requests, prompt_tokens, answer_tokens, items, batches, computed_us: Counters since the
            server began; see `ServerKind`.
        running, waiting: Requests now.
        first_token, token, latency: Times since the server began.
    """

    server: str
    model: str
    requests: float | None = None
    prompt_tokens: float | None = None
    answer_tokens: float | None = None
    items: float | None = None
    batches: float | None = None
    computed_us: float | None = None
    running: float | None = None
    waiting: float | None = None
    first_token: Histogram | None = None
    token: Histogram | None = None
    latency: Histogram | None = None


def figures(page: bytes) -> tuple[ServerFigures, ...]:
    """Return the figures on a page, by model; (): it is the page of no server that is known."""
    series: dict[str, list[Series]] = {}
    for each in read(page, PREFIXES):
        series.setdefault(each.name, []).append(each)
    return tuple(
        found
        for kind in KINDS
        if any(name.startswith(kind.prefix) for name in series)
        for found in _of_kind(kind, series)
    )


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """Requests that a server has now, from all clients together.

    Attributes:
        requests: Those that it works on, and those that wait there.
        full: A further one would wait there for long: its KV cache is full and requests wait, or
            more wait than it works on.
    """

    requests: float
    full: bool


def load_of(page: bytes) -> ServerLoad | None:
    """Return the load that a page states, of all models together; None: it states none."""
    found: dict[str, list[float]] = {}
    for each in read(page, _LOAD_NAMES):
        found.setdefault(each.name, []).append(each.value)

    def values(quantity: str) -> list[float]:
        return found.get(next((name for name in names_of(quantity) if name in found), ""), [])

    running, waiting = sum(values("running")), sum(values("waiting"))
    if not values("running") and not values("waiting"):
        return None
    kv_full = max(values("kv_use"), default=0.0) >= _FULL_KV
    return ServerLoad(running + waiting, waiting > 0 and (kv_full or waiting > running))


def _of_kind(kind: ServerKind, series: Mapping[str, list[Series]]) -> Iterator[ServerFigures]:
    models: dict[str, _Entry] = {}

    def entries(name: str) -> Iterator[tuple[Series, _Entry]]:
        for each in series.get(name, ()):
            model = each.labels.get(kind.model_label, "")[:_NAME_LENGTH]
            model = "".join(letter for letter in model if letter.isprintable())
            if model in models or len(models) < MAX_MODELS:
                yield each, models.setdefault(model, _Entry())

    for quantity in _COUNTERS:
        name = next((each for each in getattr(kind, quantity) if each in series), "")
        for each, entry in entries(name):
            entry.sums[quantity] = entry.sums.get(quantity, 0.0) + each.value
    for quantity in _TIMES:
        names = getattr(kind, quantity)
        name = next((each for each in names if f"{each}_count" in series), "")
        for suffix in ("count", "sum", "bucket"):
            for each, entry in entries(f"{name}_{suffix}"):
                entry.times.setdefault(quantity, _Times()).add(suffix, each)
    for model, entry in models.items():
        times = {name: each.frozen() for name, each in entry.times.items()}
        found: dict[str, Any] = {**entry.sums, **times}
        yield ServerFigures(kind.name, model, **found)


@dataclass(slots=True)
class _Times:
    """A histogram while its samples are read."""

    count: float = 0.0
    total_s: float = 0.0
    buckets: dict[float, float] = field(default_factory=dict)

    def add(self, suffix: str, each: Series) -> None:
        """Add a sample of its count, its sum or a bucket."""
        if suffix == "count":
            self.count += each.value
            return
        if suffix == "sum":
            self.total_s += each.value
            return
        try:
            bound_s = float(each.labels.get("le", ""))
        except ValueError:
            return
        room = bound_s in self.buckets or len(self.buckets) < MAX_BUCKETS
        if room and not math.isnan(bound_s):
            self.buckets[bound_s] = self.buckets.get(bound_s, 0.0) + each.value

    def frozen(self) -> Histogram:
        """Return it as read."""
        return Histogram(self.count, self.total_s, self.buckets)


@dataclass(slots=True)
class _Entry:
    """Figures of one model while they are read. Attributes: sums and times, by quantity."""

    sums: dict[str, float] = field(default_factory=dict)
    times: dict[str, _Times] = field(default_factory=dict)
