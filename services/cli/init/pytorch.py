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

Example = Callable[[Sequence[str], Sequence[str]], Mapping[str, Array]]
"""Receives the names of a module's inputs, and those that it can do without; returns the arrays of
some items, of the latter where they are known."""

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
    """Write a module as an ONNX file, and return the file.

    The first dimension is free; those of whole numbers, which are tokens, as far as they can be.

    Args:
        module: The module; the code of its file runs here.
        target: File to write.
        example: Called with the names of the arguments of `forward`.

    Raises:
        AlreadyExists: `target` exists.
        FailedPrecondition: PyTorch or its exporter is not installed.
        InvalidArgument: The code fails, or is no module that can be exported.
    """
    if target.exists():
        raise AlreadyExists(f"{target} exists: --onnx {target} takes it as it is")
    torch = _torch()
    network = _made(torch, module)
    tensors = {name: torch.from_numpy(a) for name, a in _arrays(network, example).items()}
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        torch.onnx.export(
            network,
            (),
            target,
            kwargs=tensors,
            input_names=[*tensors],
            output_names=_output_names(torch, network(**tensors)),
            dynamic_shapes={name: _free(torch, each) for name, each in tensors.items()},
            external_data=False,
            verbose=False,
        )
    except Exception as error:  # any error of the module's code, or of torch
        target.unlink(missing_ok=True)
        cause = error.__cause__ or error
        said = str(cause).strip().partition("\n")[0]  # pages of advice follow
        raise InvalidArgument(
            f"{module.file}: {module.name} cannot be exported: {type(cause).__name__}: {said}; "
            "--shape assumes images or other fractions: token ids, masks and texts need --data"
        ) from error
    return target


def _arrays(network: Any, example: Example) -> Mapping[str, Array]:
    """Return an array for each argument of `forward` that is known, in their order."""
    taken = [
        each
        for each in inspect.signature(network.forward).parameters.values()
        if each.kind in {each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY}
    ]
    needed = [each.name for each in taken if each.default is each.empty]
    found = example(needed, [each.name for each in taken if each.default is not each.empty])
    return {each.name: found[each.name] for each in taken if each.name in found}


def _output_names(torch: Any, answer: Any) -> list[str] | None:
    """Return names of the outputs; None: the exporter chooses them."""
    if torch.is_tensor(answer):
        return ["output"]
    if isinstance(answer, Mapping) and all(map(torch.is_tensor, answer.values())):
        return [*answer]
    return None


def _free(torch: Any, tensor: Any) -> dict[int, Any]:
    """Return which dimensions of an input are to be free."""
    free = {0: torch.export.Dim.DYNAMIC}
    if tensor.is_floating_point():
        return free
    return dict.fromkeys(range(1, tensor.ndim), torch.export.Dim.AUTO) | free


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
