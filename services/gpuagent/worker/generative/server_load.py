"""Load of a language model's server, by the Prometheus metrics that it exposes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

_WAITING: Final = (
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "llamacpp:requests_deferred",
    "tgi_queue_size",
)
_KV_CACHE: Final = (
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "sglang:token_usage",
)
_KV_TOKENS: Final = ("sglang:max_total_num_tokens",)
_KV_BLOCKS: Final = "vllm:cache_config_info"
"""Its labels state the blocks of an engine's cache, and the tokens of a block."""

_ALL: Final = (*_WAITING, *_KV_CACHE, *_KV_TOKENS, _KV_BLOCKS)


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """A server's load.

    Attributes:
        waiting: Requests that wait at the server.
        kv_cache_ratio: Share of its KV cache that is in use, 0 .. 1; 0: not stated.
        kv_tokens: Tokens for which its KV cache has room; 0: not stated.
    """

    waiting: int = 0
    kv_cache_ratio: float = 0.0
    kv_tokens: int = 0


def parse(exposition: str) -> ServerLoad:
    """Return the load that a server states; of several engines, the sum, and the fullest cache.

    Names are those of vLLM ("Production metrics"), SGLang, llama.cpp's server and Text Generation
    Inference.

    Args:
        exposition: Metrics in Prometheus' text format; others are skipped unread.

    Raises:
        ValueError: It is not in that format.
    """
    own = [line for line in exposition.splitlines() if line.startswith(_ALL)]
    found: dict[str, list[float]] = {}
    kv_tokens = 0.0
    for family in text_string_to_metric_families("\n".join((*own, ""))):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.value)
            if sample.name == _KV_BLOCKS:
                kv_tokens += _tokens(sample.labels)
    return ServerLoad(
        waiting=round(sum(_first(found, _WAITING))),
        kv_cache_ratio=max(_first(found, _KV_CACHE), default=0.0),
        kv_tokens=round(kv_tokens or sum(_first(found, _KV_TOKENS))),
    )


def _tokens(labels: Mapping[str, str]) -> float:
    """Return the tokens of a vLLM engine's cache; 0 where it states none ("None" at its start).

    Blocks times their size is more where the model has layers with windows or states, or where
    several GPUs share the context: the engine states what is left of it.
    """
    for names in (("kv_cache_size_tokens",), ("num_gpu_blocks", "block_size")):
        try:
            return max(math.prod(int(labels[name]) for name in names), 0)
        except (KeyError, ValueError):
            continue
    return 0.0


def _first(found: Mapping[str, list[float]], names: tuple[str, ...]) -> list[float]:
    return next((found[name] for name in names if name in found), [])
