"""Reads a model repository of Triton: models, batch sizes, and numbers of instances."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf import text_format

from inference.model_config_pb2 import ModelConfig
from services.kit.errors import InvalidArgument, NotFound, ServiceError
from services.kit.segment import plain, require_printable

CONFIG: Final = "config.pbtxt"
_ONNX: Final = ("onnxruntime", "onnxruntime_onnx")
_FILE: Final = "model.onnx"
_VERSION: Final = re.compile("[0-9]{1,18}")
_COMPLETED_BATCH: Final = 4
"""Triton's largest batch of a model that has no config.pbtxt (default-max-batch-size)."""

_WITHOUT: Final = (
    "batch_input", "batch_output", "cc_model_filenames", "metric_tags", "model_metrics",
    "model_operations", "model_repository_agents", "model_warmup", "optimization", "response_cache",
)  # fmt: skip
"""Parts of a configuration that have no counterpart here, and change no answer."""


@dataclass(frozen=True, slots=True)
class RepositoryModel:
    """A model of a repository.

    Attributes:
        name: Its name.
        onnx: The file of the version that Triton would serve, where ONNX Runtime serves it; None:
            another backend.
        backend: Triton's name of the backend or platform.
        max_batch: Largest batch; 1: it takes no batches.
        batch_sizes: Preferred batch sizes.
        instances: Instances per GPU.
        shapes: Sizes of an item by input, where the configuration has all of them.
        without: Parts of the configuration that are not taken over.
    """

    name: str
    onnx: Path | None
    backend: str
    max_batch: int
    batch_sizes: tuple[int, ...]
    instances: int
    shapes: dict[str, tuple[int, ...]]
    without: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository. Attributes: folder, models, refused (reasons by model)."""

    folder: Path
    models: tuple[RepositoryModel, ...]
    refused: dict[str, str]


def read_repository(folder: Path) -> Repository:
    """Return a repository's models; each that cannot be planned is refused by name.

    Raises:
        NotFound: The folder has no model.
        InvalidArgument: A model's name is not printable.
    """
    models: list[RepositoryModel] = []
    refused: dict[str, str] = {}
    for path in _folders(folder):
        require_printable(str(folder), path.name)
        try:
            config = _config(path)
            if reason := _refusal(config):
                refused[path.name] = reason
            else:
                models.append(_model(path, config))
        except ServiceError as error:
            refused[path.name] = plain(error.message)
    if not models and not refused:
        raise NotFound(f"{folder} has no model: no MODEL/{CONFIG} in it")
    return Repository(folder, tuple(models), refused)


def _folders(folder: Path) -> Sequence[Path]:
    """Return the folders of models: with a configuration, or with versions of an ONNX file."""
    configured = {path.parent for path in folder.glob(f"*/{CONFIG}")}
    complete = {
        path.parent.parent
        for path in folder.glob(f"*/*/{_FILE}")
        if _VERSION.fullmatch(path.parent.name)
    }
    return sorted(configured | complete)


def _config(folder: Path) -> ModelConfig:
    path = folder / CONFIG
    if not path.is_file():
        return ModelConfig(backend=_ONNX[0], max_batch_size=_COMPLETED_BATCH)
    try:
        text = path.read_text(encoding="utf-8")
        config = text_format.Parse(text, ModelConfig(), allow_unknown_field=True)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: {error}") from error
    except RecursionError as error:
        raise InvalidArgument(f"{path}: messages in it are nested too deep") from error
    steps = (step.model_name for step in config.ensemble_scheduling.step)
    file = config.default_model_filename
    labels = (each.label_filename for each in config.output)
    taken, given = [each.name for each in config.input], [each.name for each in config.output]
    for name in (config.backend, config.platform, file, *steps, *labels, *taken, *given):
        require_printable(str(path), name)
    if file and (file in {".", ".."} or "/" in file):
        raise InvalidArgument(f"{path}: default_model_filename must name a file, got {file!r}")
    return config


def _refusal(config: ModelConfig) -> str:
    """Return why a model cannot be served here; "": it can."""
    if config.platform == "ensemble" or config.HasField("ensemble_scheduling"):
        steps = ", ".join(step.model_name for step in config.ensemble_scheduling.step)
        return (
            f"an ensemble (of {steps or 'other models'}): Triton runs its steps together; "
            "serve the steps, or split one network with `cinquefoil partition`"
        )
    if config.model_transaction_policy.decoupled:
        return "decoupled: it answers a request any number of times"
    if config.HasField("sequence_batching"):
        return (
            "sequence_batching: Triton keeps a sequence's state between requests; here clients "
            "send a state as an input and get it as an output"
        )
    return ""


def _model(folder: Path, config: ModelConfig) -> RepositoryModel:
    backend = config.backend or config.platform
    file = None
    if backend in _ONNX:
        file = _served(folder, config)
    counts = [max(1, group.count) for group in config.instance_group]
    preferred = config.dynamic_batching.preferred_batch_size
    return RepositoryModel(
        name=folder.name,
        onnx=file,
        backend=backend or "no backend",
        max_batch=max(1, config.max_batch_size),
        batch_sizes=tuple(size for size in preferred if size > 0),
        instances=max(counts, default=1),
        shapes=dict(_shapes(config)),
        without=tuple(_without(config)),
    )


def _shapes(config: ModelConfig) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Yield the sizes of an item of the inputs whose sizes are all stated."""
    for each in config.input:
        dims = each.reshape.shape if each.HasField("reshape") else each.dims
        sizes = tuple(dims if config.max_batch_size > 0 else dims[1:])
        if sizes and all(size > 0 for size in sizes):
            yield each.name, sizes


def _without(config: ModelConfig) -> Iterable[str]:
    stated = {field.name for field, _ in config.ListFields()}
    yield from (name for name in _WITHOUT if name in stated)
    yield from (f"labels of {o.label_filename}" for o in config.output if o.label_filename)


def _served(folder: Path, config: ModelConfig) -> Path:
    """Return the file of the version that Triton's version policy serves; of several, the newest.

    Raises:
        InvalidArgument: There is no such file.
    """
    name = config.default_model_filename or _FILE
    versions = {int(each.name) for each in folder.iterdir() if _VERSION.fullmatch(each.name)}
    wanted = set(config.version_policy.specific.versions)
    if wanted:
        versions &= wanted
        if not versions:
            listed = ", ".join(map(str, sorted(wanted)))
            raise InvalidArgument(
                f"{folder / CONFIG}: version_policy: there is no version {listed}"
            )
    file = folder / str(max(versions, default=1)) / name
    if not file.is_file():
        raise InvalidArgument(f"{folder / CONFIG}: there is no {file}", field="model")
    return file
