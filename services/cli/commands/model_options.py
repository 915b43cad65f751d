"""Options of `init` and `models add`, which read and measure models."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from services.cli.init.pytorch import Module


class Precision(StrEnum):
    """Precisions that a network's weights can be reduced to."""

    FP16 = "fp16"
    INT8 = "int8"


Onnx = Annotated[
    list[Path] | None,
    typer.Option(help="ONNX file; several: variants of one model, from cheap to accurate."),
]
PyTorch = Annotated[
    str | None,
    typer.Option(
        metavar="FILE:CLASS",
        help="PyTorch module, exported to ONNX. FILE is imported: its code runs here, with your "
        "permissions. CLASS is called without arguments; a function or a module will do.",
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(help="State dict of the --pytorch module; tensors only are read from it."),
]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[INPUT=]SIZES",
        help="Sizes of one item where neither the network nor --data has them: 3,224,224.",
    ),
]
HuggingFace = Annotated[
    str | None,
    typer.Option(
        metavar="ORG/NAME",
        help="ONNX files of the Hugging Face hub, ORG/NAME[@REVISION][/FILE.onnx], or of a folder.",
    ),
]
Data = Annotated[
    Path | None, typer.Option(help="Validation set, .npz: an array for each input, and `labels`.")
]
MetricOption = Annotated[
    str | None,
    typer.Option(
        "--metric",
        metavar="METRIC",
        help="What accuracy is: accuracy, mse, mae, embedding-cosine, iou, text, agreement (with "
        "the last --onnx; needs no labels), or FILE:FUNCTION: its code runs here, without network "
        "and other files. Default: accuracy; without labels agreement.",
    ),
]
Quantize = Annotated[
    list[Precision] | None,
    typer.Option(help="Add variants at this precision, measured on --data; may be repeated."),
]
ModelName = Annotated[str, typer.Option("--name", help="Name of the model. Default: its file's.")]
Latency = Annotated[
    float | None, typer.Option(min=0.001, help="Latency objective, s. Default: by measurement.")
]


def item_shapes(given: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Return the values of --shape by the input's name; "" is the only input."""
    from services.kit.segment import whole_number

    shapes = {}
    for text in given or ():
        name, _, sizes = text.rpartition("=")
        found = [whole_number(size, 2**31 - 1) for size in sizes.split(",")]
        if not all(found):
            raise typer.BadParameter(f"--shape {text}: whole numbers > 0 are needed: 3,224,224")
        shapes[name] = tuple(size for size in found if size)
    return shapes


def module(pytorch: str | None, weights: Path | None) -> "Module | None":
    """Return the module of --pytorch and --weights."""
    from services.cli.init.pytorch import Module

    if pytorch is None:
        if weights is not None:
            raise typer.BadParameter("--weights belongs to --pytorch")
        return None
    return Module.parse(pytorch, weights)
