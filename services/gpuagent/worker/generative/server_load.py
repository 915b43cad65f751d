"""Load of a language model's server, by the Prometheus metrics that it exposes."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from services.kit.server_metrics.figures import names_of

_WAITING: Final = names_of("waiting")
_KV_CACHE: Final = names_of("kv_use")
_KV_TOKENS: Final = ("sglang:max_total_num_tokens",)
_KV_BLOCKS: Final = "vllm:cache_config_info"
"""Its labels state the blocks of an engine's cache, and the tokens of a block."""

_ALL: Final = (*_WAITING, *_KV_CACHE, *_KV_TOKENS, _KV_BLOCKS)
_OWN: Final = re.compile(rf"^(?:{'|'.join(_ALL)})[^\n]*", re.MULTILINE)
_MOST_SAMPLES: Final = 1024
_MOST_REQUESTS: Final = 2**31
_MOST_TOKENS: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """A server's load.

    Attributes:
        waiting: Requests that wait at the server, below 2^31.
        kv_cache_ratio: Share of its KV cache that is in use, 0 .. 1; 0: not stated.
        kv_tokens: Tokens for which its KV cache has room, below 2^32; 0: not stated.
    """

    waiting: int = 0
    kv_cache_ratio: float = 0.0
    kv_tokens: int = 0


def parse(exposition: str) -> ServerLoad:
    """Return the load that a server states; of several engines, the sum, and the fullest cache.

    Names are those of vLLM ("Production metrics"), SGLang, llama.cpp's server and Text Generation
    Inference.

    Args:
        exposition: Metrics in Prometheus' text format; others are skipped unread, as is what
            follows the first 1,024 samples.

    Raises:
        ValueError: It is not in that format, or a figure cannot be.
    """
    own = [found.group() for found in islice(_OWN.finditer(exposition), _MOST_SAMPLES)]
    found: dict[str, list[float]] = {}
    kv_tokens = 0.0
    for family in text_string_to_metric_families("\n".join((*own, ""))):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample.value)
            if sample.name == _KV_BLOCKS:
                kv_tokens += _tokens(sample.labels)
    return ServerLoad(
        waiting=round(_within(sum(_first(found, _WAITING)), _MOST_REQUESTS)),
        kv_cache_ratio=_within(min(max(_first(found, _KV_CACHE), default=0.0), 1.0), 1.0),
        kv_tokens=round(_within(kv_tokens or sum(_first(found, _KV_TOKENS)), _MOST_TOKENS)),
    )


def _within(figure: float, most: float) -> float:
    if not 0 <= figure <= most:
        raise ValueError(f"{figure!r:.40} is not within 0..{most:g}")
    return figure


def _tokens(labels: Mapping[str, str]) -> float:
    """Return the tokens of a vLLM engine's cache; 0 where it states none ("None" at its start).

    Blocks times their size is more where the model has layers with windows or states, or where
    several GPUs share the context: the engine states what is left of it.
    """
    for names in (("kv_cache_size_tokens",), ("num_gpu_blocks", "block_size")):
        try:
            return max(math.prod(float(int(labels[name])) for name in names), 0.0)
        except (KeyError, ValueError, OverflowError):
            continue
    return 0.0


def _first(found: Mapping[str, list[float]], names: tuple[str, ...]) -> list[float]:
    return next((found[name] for name in names if name in found), [])
