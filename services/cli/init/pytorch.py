"""PyTorch modules as ONNX files, by torch.onnx."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from services.cli.samples import Array
from services.kit.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound

Example = Callable[[Sequence[str]], Mapping[str, Array]]
"""Receives the names of a module's inputs; returns their arrays, of some items."""

_INSTALL: Final = "pip install torch onnxscript, or pipx inject cinquefoil torch onnxscript"


@dataclass(frozen=True, slots=True)
class Module:
    """A module of the user's code.

    Attributes:
        file: Python file, which is imported: its code runs.
        name: In it: a class or function that is called without arguments, or a module itself.
        weights: File of a state dict, of which tensors only are read; None: the code loads them.
    """

    file: Path
    name: str
    weights: Path | None = None

    @classmethod
    def parse(cls, text: str, weights: Path | None) -> Module:
        """Return the module that FILE:CLASS names.

        Raises:
            InvalidArgument: It has another form.
            NotFound: A file does not exist.
        """
        file, _, name = text.rpartition(":")
        if not file.endswith(".py") or not name.isidentifier():
            raise InvalidArgument(f"--pytorch {text}: FILE:CLASS is needed, such as net.py:Net")
        for option, path in (("--pytorch", Path(file)), ("--weights", weights)):
            if path is not None and not path.is_file():
                raise NotFound(f"{option}: there is no {path}")
        return cls(Path(file), name, weights)


def export(module: Module, target: Path, example: Example) -> Path:
    """Write a module as an ONNX file whose first dimension is free, and return the file.

    Args:
        module: The module; the code of its file runs here.
        target: File to write.
        example: Called with the names of the arguments that `forward` needs.

    Raises:
        AlreadyExists: `target` exists.
        FailedPrecondition: PyTorch or its exporter is not installed.
        InvalidArgument: The code fails, or is no module that can be exported.
    """
    if target.exists():
        raise AlreadyExists(f"{target} exists: --onnx {target} takes it as it is")
    torch = _torch()
    network = _made(torch, module)
    names = [
        each.name
        for each in inspect.signature(network.forward).parameters.values()
        if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
    ]
    tensors = tuple(map(torch.from_numpy, example(names).values()))
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        torch.onnx.export(
            network,
            tensors,
            target,
            input_names=names,
            output_names=["output"] if torch.is_tensor(network(*tensors)) else None,
            dynamic_shapes=tuple({0: torch.export.Dim.DYNAMIC} for _ in tensors),
            external_data=False,
            verbose=False,
        )
    except Exception as error:  # any error of the module's code, or of torch
        target.unlink(missing_ok=True)
        cause = error.__cause__ or error
        said = str(cause).strip().partition("\n")[0]  # pages of advice follow
        raise InvalidArgument(
            f"{module.file}: {module.name} cannot be exported: {type(cause).__name__}: {said}"
        ) from error
    return target


def _torch() -> Any:
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("onnxscript")
    except ImportError as error:
        raise FailedPrecondition(f"--pytorch: {error}; {_INSTALL}") from error
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # libraries that are not there
    return torch


def _made(torch: Any, module: Module) -> Any:
    sys.path.insert(0, str(module.file.parent.resolve()))  # modules beside it can be imported
    try:
        code = ModuleType(f"user_{module.file.stem}")  # no name that a library has
        code.__file__ = str(module.file.resolve())
        sys.modules[code.__name__] = code  # where its classes look themselves up
        SourceFileLoader(code.__name__, str(module.file)).exec_module(code)
        found = getattr(code, module.name)
        made = found if isinstance(found, torch.nn.Module) else found()
        if module.weights is not None:
            made.load_state_dict(torch.load(module.weights, map_location="cpu", weights_only=True))
    except Exception as error:  # any error of the user's code
        raise InvalidArgument(
            f"{module.file}:{module.name}: {type(error).__name__}: {error}"
        ) from error
    finally:
        del sys.path[0]
    if not isinstance(made, torch.nn.Module):
        raise InvalidArgument(
            f"{module.file}: {module.name} gives {type(made).__name__}, not a torch.nn.Module"
        )
    return made.cpu().eval()
