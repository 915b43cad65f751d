"""`cinquefoil predictor train|evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import Json

Data = Annotated[
    Path,
    typer.Option(
        "--data",
        metavar="FILE.jsonl",
        help='One answer a line: {"model": "...", "prompt": "...", "output_tokens": 123}.',
    ),
]


def train(
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder for predictor.onnx and the report.")] = Path(
        "out/predictor"
    ),
    test_share: Annotated[
        float, typer.Option(min=0.05, max=0.5, help="Part of the prompts kept to test with.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(min=0, help="Chooses them, and draws weights.")] = 0,
    json: Json = False,
) -> None:
    """Train a predictor of output lengths on your own log, and say how good it is.

    No prompt is both trained and tested with. Simple predictors are trained beside it: what does
    not beat them is not worth its milliseconds. `predictor.model` in cinquefoil.yaml names the
    file to use.
    """
    from services.cli.predictor.train import Options
    from services.cli.predictor.train import train as work

    work(data, Options(out, test_share, seed, as_json=json))


def evaluate(
    data: Data,
    model: Annotated[
        Path | None, typer.Option(help="A predictor.onnx. Default: the one that ships.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path(
        "out/predictor/evaluation"
    ),
    json: Json = False,
) -> None:
    """Say how good a predictor is on answers it was not trained with.

    Classes are cut at the percentiles of the answers in the file.
    """
    from services.cli.predictor.train import evaluate as work

    work(data, model, out, as_json=json)
