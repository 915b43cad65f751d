"""`cinquefoil predictor ...`: the length of generated answers."""

import os
from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config, Json, group
from services.cli.commands.serve import WithParent, launch_service

app = group("predictor", "Predicts the length of generated answers.")
Data = Annotated[
    Path,
    typer.Option(
        "--data",
        metavar="FILE.jsonl",
        help='One answer per line: {"model": "...", "prompt": "...", "output_tokens": 123}; '
        '"finish_reason": "length" where it was cut off.',
    ),
]


@app.command()
def serve(
    config: Config = DEPLOYMENT,
    no_persist: Annotated[
        bool, typer.Option("--no-persist", help="Write nothing of prompts to the disk.")
    ] = False,
    with_parent: WithParent = False,
) -> None:
    """Run the predictor service until SIGTERM."""
    if no_persist:
        os.environ["CINQUEFOIL_PREDICTOR__CACHE__PERSIST"] = "false"
    launch_service("predictor", config, with_parent=with_parent)


@app.command()
async def status(config: Config = DEPLOYMENT, json: Json = False) -> None:
    """Show predictions by source: how many, how fast, and how often the class was right."""
    from services.cli.predictor.queries import status as work

    await work(config, as_json=json)


@app.command()
async def forget(
    config: Config = DEPLOYMENT,
    model: Annotated[str, typer.Option("--model", help="Prompts of this model.")] = "",
    older_than: Annotated[
        str,
        typer.Option("--older-than", help="Prompts unused for at least this long: 12h, 7d, ..."),
    ] = "",
    everything: Annotated[bool, typer.Option("--all", help="All prompts of all models.")] = False,
) -> None:
    """Delete the predictor's records of prompts, from memory and from the disk."""
    from cinquefoil.predictor.v1.predictor_pb2 import ForgetRequest
    from services.cli.console.durations import seconds
    from services.cli.predictor.queries import forget as work

    request = ForgetRequest(model=model, everything=everything)
    if older_than:
        try:
            request.unused_for.FromSeconds(seconds(older_than))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--older-than") from error
    if not (model or older_than or everything):
        raise typer.BadParameter("give --model, --older-than or --all")
    await work(config, request)


@app.command()
def train(
    data: Data,
    out: Annotated[Path, typer.Option(help="Folder for predictor.onnx and the report.")] = Path(
        "out/predictor"
    ),
    test_share: Annotated[
        float, typer.Option(min=0.05, max=0.5, help="Share of the prompts kept for testing.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of split and weights.")] = 0,
    json: Json = False,
) -> None:
    """Train a predictor of output lengths on your own log, and measure how good it is.

    No prompt is both trained and tested with. Simple predictors are trained for comparison: a model
    that does not beat them is not worth its milliseconds. `predictor.model` in cinquefoil.yaml
    names the file to use.
    """
    from services.cli.predictor.train import train as work

    work(data, out, test_share=test_share, seed=seed, as_json=json)


@app.command()
def evaluate(
    data: Data,
    model: Annotated[
        Path | None, typer.Option(help="A predictor.onnx. Default: the one in the package.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path(
        "out/predictor/evaluation"
    ),
    json: Json = False,
) -> None:
    """Measure how good a predictor is on answers that it was not trained with.

    Classes are cut at the percentiles of the answers in the file.
    """
    from services.cli.predictor.train import evaluate as work

    work(data, model, out, as_json=json)
