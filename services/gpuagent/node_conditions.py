"""Conditions of the agent's own machine: models' files, providers, GPUs, the disk."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import ClassVar, Final

from cinquefoil.condition.v1.records import Condition, ConditionKind
from services.gpuagent.core.gpu_info import GpuInfo
from services.gpuagent.core.model import Segment
from services.gpuagent.core.worker_config import ONNX_PROVIDERS
from services.gpuagent.node_place import NodePlace
from services.kit.config import Deployment, OnnxRuntime
from services.kit.errors import FailedPrecondition
from services.kit.hardware.boards import table_of
from services.kit.package_data import require_sha256
from services.kit.state_file import damaged_files
from services.kit.units import BYTES_PER_MIB

_MIN_FREE_MIB: Final = 256
_PROVIDERS: Final = "services.gpuagent.worker.providers"
_PROVIDER_TIMEOUT_S: Final = 60.0


@dataclass(slots=True, eq=False)
class NodeConditions:
    """Looks at models' files, providers, GPUs and the disk.

    Attributes:
        deployment: The whole deployment.
        place: The node.
        changed: Called when the conditions have changed.
        segments: Returns what runs.
        gpus: The GPUs, as found at the start.
        unsaved: Returns why state cannot be written; "": it can.
        refused: Returns the queries that drivers refuse, by GPU, each with their words.
        doubtful: Returns what is wrong with GPUs' meters.
        capped: Returns the conditions of a power budget that the agent keeps.
        found: Present conditions.
    """

    PERIOD_S: ClassVar = 5.0

    deployment: Deployment
    place: NodePlace
    changed: Callable[[], None]
    segments: Callable[[], Iterable[Segment]]
    gpus: Iterable[GpuInfo] = ()
    unsaved: Callable[[], str] = lambda: ""
    refused: Callable[[], Mapping[str, Mapping[str, str]]] = dict
    doubtful: Callable[[], Mapping[str, str]] = dict
    capped: Callable[[], Iterable[Condition]] = tuple
    found: tuple[Condition, ...] = ()
    _provider: str | None = None

    async def look(self, *, digests: bool = True) -> None:
        """Look once.

        Args:
            digests: Whether to compare models' files with their SHA-256, which reads each once.
        """
        find = partial(self._find, digests=digests)
        found = (
            *await asyncio.to_thread(lambda: tuple(find())),
            *self._fixed_batches(),
            *self.capped(),
        )
        if found != self.found:
            self.found = found
            self.changed()

    def _find(self, *, digests: bool) -> Iterator[Condition]:
        name, folder = self.place.name, self.place.folder
        yield from self._model_files(digests=digests)
        yield from self._provider_missing()
        yield from self._estimated()
        yield from self._impaired()
        damaged = damaged_files(folder)
        if damaged:
            yield Condition(
                ConditionKind.STATE_DAMAGED,
                f"node/{name}",
                f"state was damaged, set aside and begun again: {', '.join(map(str, damaged))}",
            )
        yield from self._disk_full()

    def _model_files(self, *, digests: bool) -> Iterator[Condition]:
        """Yield the conditions of models' files: missing, or with another SHA-256."""
        for model_name, model in self.deployment.models.items():
            for variant_name, variant in model.variants.items():
                for key, network in variant.loaded():
                    path = self.deployment.path_of(network)
                    if not path.is_file():
                        kind = ConditionKind.MODEL_FILE_MISSING
                        problem = f"{self.place.name} has no file {path}"
                    elif digests and network.sha256:
                        kind = ConditionKind.MODEL_FILE_DAMAGED
                        problem = _file_problem(path, network.sha256)
                    else:
                        continue
                    if problem and network.uri:
                        problem += f"; `cinquefoil models fetch {model_name}` brings it"
                    if problem:
                        subject = f"variant/{model_name}/{variant_name}"
                        where = ".".join(("models", model_name, "variants", variant_name, *key))
                        yield Condition(kind, subject, problem, where)

    def _disk_full(self) -> Iterator[Condition]:
        name, folder = self.place.name, self.place.folder
        unsaved = self.unsaved()
        free_mib = shutil.disk_usage(folder).free // BYTES_PER_MIB
        if unsaved or free_mib < _MIN_FREE_MIB:
            yield Condition(
                ConditionKind.DISK_FULL,
                f"node/{name}",
                unsaved or f"less than {_MIN_FREE_MIB} MiB are free on the disk of {folder}",
                f"nodes.{name}.state_dir",
            )

    def _estimated(self) -> Iterator[Condition]:
        """Yield the GPU types of which nothing but what the driver says is known."""
        for model in {gpu.model.name: gpu.model for gpu in self.gpus}.values():
            if model.performance and table_of(model.product_name, model.memory_bytes) is None:
                like = model.performance.like
                yield Condition(
                    ConditionKind.GPU_ESTIMATED,
                    f"gpu/{model.name}",
                    f"{model.product_name} has no table: its speed and idle power are estimated "
                    f"from {like} by multiprocessors, clock, memory and power limit",
                )

    def _impaired(self) -> Iterator[Condition]:
        """Yield the GPUs of which the driver does not say all, or the meter says what cannot be."""
        refused, doubtful = self.refused(), self.doubtful()
        for gpu in sorted({*refused, *doubtful}):
            queries = "; ".join(f"{query}: {why}" for query, why in refused.get(gpu, {}).items())
            sentences = (
                queries
                and f"the driver refuses to answer, and what it does not say of {gpu} is "
                f"estimated or missing: {queries}",
                doubtful.get(gpu, ""),
            )
            yield Condition(
                ConditionKind.GPU_IMPAIRED, f"gpu/{gpu}", "; ".join(filter(None, sentences))
            )

    def _provider_missing(self) -> Iterator[Condition]:
        """Yield that ONNX Runtime cannot use real GPUs; looked at once, in a process of its own."""
        settings = self.place.settings
        if not settings.controlled or settings.simulated is not None or settings.cpu is not None:
            return
        wanted = {
            variant.runtime.provider
            for model in self.deployment.models.values()
            for variant in model.variants.values()
            if isinstance(variant.runtime, OnnxRuntime)
        }
        if self._provider is None:
            self._provider = "; ".join(filter(None, map(missing_provider, sorted(wanted))))
        if self._provider:
            yield Condition(
                ConditionKind.PROVIDER_MISSING, f"node/{self.place.name}", self._provider
            )

    def _fixed_batches(self) -> Iterator[Condition]:
        kinds = {
            (each.spec.model, each.spec.variant): (each.spec.batch_size, each.alone_reason)
            for each in self.segments()
            if 0 < each.max_batch < each.spec.batch_size
        }
        for (model, variant), (batch_size, why) in sorted(kinds.items()):
            yield Condition(
                ConditionKind.FIXED_BATCH,
                f"variant/{model}/{variant}",
                f"{variant} of {model} takes one request at a time{': ' * bool(why)}{why}; its "
                f"segments are planned with batches of up to {batch_size}",
                f"models.{model}.variants.{variant}.max_batch",
            )


def _file_problem(file: Path, sha256: str) -> str:
    """Return why a file is not the expected one; "": it is. Blocks."""
    try:
        stat = file.stat()
        changes = stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns
        return _digest_problem(file, sha256, changes)
    except OSError as error:
        return f"{file}: {error.strerror}"


@cache
def _digest_problem(file: Path, sha256: str, _changes: tuple[int, ...]) -> str:
    """Read a file; again only where it has changed."""
    try:
        require_sha256(file, sha256)
    except FailedPrecondition as error:
        return error.message
    return ""


def missing_provider(provider: str) -> str:
    """Return the reason why an execution provider does not work here; "": it works. Blocks.

    Args:
        provider: "cuda" or "tensorrt".
    """
    command = (sys.executable, "-P", "-m", _PROVIDERS, ONNX_PROVIDERS[provider])
    try:
        ended = subprocess.run(  # noqa: S603 - our own interpreter and module
            command, capture_output=True, text=True, timeout=_PROVIDER_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{provider}: its libraries did not load within {_PROVIDER_TIMEOUT_S:g} s"
    if ended.returncode:
        return f"{provider}: {ended.stderr.strip().rpartition(chr(10))[2]}"
    return ended.stdout.strip()
