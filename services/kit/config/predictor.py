"""Predicting the length of generated answers."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from services.kit.config.section import Address, Endpoint, Positive, Section


class PromptCache(Section):
    """The predictor's cache of answered prompts: hashes, vectors, lengths.

    Attributes:
        similarity: Minimum cosine of two prompts' vectors for one to predict the other's length.
        max_entries: Maximum prompts of one model; the least recently used are evicted first.
        max_mib: Maximum memory of all models' prompts together, MiB.
        max_unused_s: Time after which an unused prompt is deleted, s.
        persist: Whether to keep the cache over restarts.
        file: File of the cache; only its owner may read it.
    """

    similarity: Annotated[float, Field(gt=0, le=1)] = 0.8
    max_entries: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    max_mib: Positive = 64.0
    max_unused_s: Positive = 30 * 86_400.0
    persist: bool = True
    file: Path = Path("out/state/predictor.sqlite3")


class Predictor(Endpoint):
    """The predictor service; a deployment without this section has none.

    Attributes:
        model: File that `cinquefoil predictor train` wrote. None: the one that ships.
        cache: Cache of prompts.
        threads: Number of computing threads.
        max_waiting: Prompts that may wait for a thread; further ones get the prior.
        max_prompt_kib: Size above which prompts get the prior, KiB.
    """

    listen: Address = "127.0.0.1:8465"
    model: Path | None = None
    cache: PromptCache = PromptCache()
    threads: Annotated[int, Field(ge=1, le=64)] = 1
    max_waiting: Annotated[int, Field(ge=0)] = 64
    max_prompt_kib: Annotated[int, Field(ge=1, le=15 * 1024)] = 1024
