"""Options of `init` and `models add`, which read and measure models."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Precision(StrEnum):
    """What a network's weights can be reduced to."""

    FP16 = "fp16"
    INT8 = "int8"


Onnx = Annotated[
    list[Path] | None,
    typer.Option(help="ONNX file; several: variants of one model, from cheap to accurate."),
]
HuggingFace = Annotated[
    Path | None, typer.Option(help="Folder of a Hugging Face model with ONNX files.")
]
Data = Annotated[
    Path | None, typer.Option(help="Validation set, .npz: an array for each input, and `labels`.")
]
Quantize = Annotated[
    list[Precision] | None,
    typer.Option(help="Add variants at this precision, measured on --data; may be repeated."),
]
ModelName = Annotated[str, typer.Option("--name", help="Name of the model. Default: its file's.")]
Latency = Annotated[
    float | None, typer.Option(min=0.001, help="Latency objective, s. Default: by measurement.")
]
