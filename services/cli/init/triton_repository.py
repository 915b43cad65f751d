"""Reads a model repository of Triton: models, batch sizes, and numbers of instances."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf import text_format

from inference.model_config_pb2 import ModelConfig
from services.kit.errors import InvalidArgument, NotFound
from services.kit.segment import require_printable

CONFIG: Final = "config.pbtxt"
_ONNX: Final = ("onnxruntime", "onnxruntime_onnx")
_FILE: Final = "model.onnx"
_VERSION: Final = re.compile("[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class RepositoryModel:
    """A model of a repository.

    Attributes:
        name: Its name.
        onnx: Its newest version's file, where ONNX Runtime serves it; None: another backend.
        backend: Triton's name of the backend or platform.
        max_batch: Largest batch; 1: it takes no batches.
        batch_sizes: Preferred batch sizes.
        instances: Instances per GPU.
    """

    name: str
    onnx: Path | None
    backend: str
    max_batch: int
    batch_sizes: tuple[int, ...]
    instances: int


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository. Attributes: folder, models, refused (reasons by model)."""

    folder: Path
    models: tuple[RepositoryModel, ...]
    refused: dict[str, str]


def read_repository(folder: Path) -> Repository:
    """Return a repository's models; those that cannot be planned are refused by name.

    Raises:
        NotFound: The folder has no model.
        InvalidArgument: A config.pbtxt cannot be read.
    """
    models: list[RepositoryModel] = []
    refused: dict[str, str] = {}
    for path in sorted(folder.glob(f"*/{CONFIG}")):
        config, name = _read(path), path.parent.name
        if config.platform == "ensemble" or config.HasField("ensemble_scheduling"):
            steps = ", ".join(step.model_name for step in config.ensemble_scheduling.step)
            refused[name] = (
                f"an ensemble (of {steps or 'other models'}): Triton runs its steps together; "
                "serve the steps, or split one network with `cinquefoil partition`"
            )
        elif config.model_transaction_policy.decoupled:
            refused[name] = "decoupled: it answers a request any number of times"
        else:
            models.append(_model(path, name, config))
    if not models and not refused:
        raise NotFound(f"{folder} has no model: no MODEL/{CONFIG} in it")
    return Repository(folder, tuple(models), refused)


def _read(path: Path) -> ModelConfig:
    require_printable(str(path), path.parent.name)
    try:
        text = path.read_text(encoding="utf-8")
        config = text_format.Parse(text, ModelConfig(), allow_unknown_field=True)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{path}: {error}") from error
    except RecursionError as error:
        raise InvalidArgument(f"{path}: messages in it are nested too deep") from error
    steps = (step.model_name for step in config.ensemble_scheduling.step)
    file = config.default_model_filename
    for name in (config.backend, config.platform, file, *steps):
        require_printable(str(path), name)
    if file and (file in {".", ".."} or "/" in file):
        raise InvalidArgument(f"{path}: default_model_filename must name a file, got {file!r}")
    return config


def _model(path: Path, name: str, config: ModelConfig) -> RepositoryModel:
    backend = config.backend or config.platform
    file = None
    if backend in _ONNX:
        file = _newest(path.parent, config.default_model_filename or _FILE)
    counts = [max(1, group.count) for group in config.instance_group]
    preferred = config.dynamic_batching.preferred_batch_size
    return RepositoryModel(
        name=name,
        onnx=file,
        backend=backend or "no backend",
        max_batch=max(1, config.max_batch_size),
        batch_sizes=tuple(size for size in preferred if size > 0),
        instances=max(counts, default=1),
    )


def _newest(folder: Path, name: str) -> Path:
    versions = [int(each.name) for each in folder.iterdir() if _VERSION.fullmatch(each.name)]
    file = folder / str(max(versions, default=1)) / name
    if not file.is_file():
        raise InvalidArgument(f"{folder / CONFIG}: there is no {file}", field="model")
    return file
