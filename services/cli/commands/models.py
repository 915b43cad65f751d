"""`cinquefoil models`: the models of a deployment, and their policies."""

from pathlib import Path
from typing import Annotated

import typer

from services.cli.commands import model_options as given
from services.cli.commands.model_options import item_shapes, module
from services.cli.commands.options import DEPLOYMENT, Config, Json, group

# Written out: `--help` must not load the deployment's types. A test compares.
DISCIPLINES = ("fcfs", "edf", "priority", "ssjf")
CHOICES = (
    "shares",
    "idle_longest",
    "least_expected_completion",
    "prefix",
    "predicted_tokens",
    "consolidated",
    "carbondis",
    "carbon_aware",
)

app = group("models", "Lists, adds, removes and fetches models; how they are served.")


Name = Annotated[str, typer.Argument(help="Model as cinquefoil.yaml names it.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only show what would change; the file stays as it is.")
]
Logs = Annotated[
    Path | None, typer.Option(help="Folder of the suite's logs, as of `up`. Default: out/logs.")
]


@app.command("list")
async def list_(config: Config = DEPLOYMENT, json: Json = False) -> None:
    """List the models of the deployment file, and whether they are served."""
    from services.cli.models.show import show_list

    await show_list(config, as_json=json)


@app.command()
async def show(model: Name, config: Config = DEPLOYMENT, json: Json = False) -> None:
    """Show a model: objective, inputs and outputs, variants."""
    from services.cli.models.show import show_one

    await show_one(config, model, as_json=json)


@app.command()
async def add(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    onnx: given.Onnx = None,
    pytorch: given.PyTorch = None,
    weights: given.Weights = None,
    hf: given.HuggingFace = None,
    data: given.Data = None,
    metric: given.MetricOption = None,
    shape: given.Shape = None,
    quantize: given.Quantize = None,
    name: given.ModelName = "",
    latency: given.Latency = None,
    dry_run: DryRun = False,
    config: Config = DEPLOYMENT,
    logs: Logs = None,
) -> None:
    """Add a model to the deployment file, and serve it at once where `cinquefoil up` runs here.

    The options are those of `init`. Comments in the file stay. With --dry-run a running planner
    shows the plan that would follow.

    For example:

    - `cinquefoil models add --onnx net.onnx --data val.npz --quantize int8 --dry-run`
    """
    from services.cli.init.metric import parse
    from services.cli.init.run import Options
    from services.cli.models.change import add as work

    if len([source for source in (onnx, pytorch, hf) if source]) != 1:
        raise typer.BadParameter("give one of --onnx, --pytorch and --hf")
    options = Options(
        files=tuple(onnx or ()),
        pytorch=module(pytorch, weights),
        shapes=item_shapes(shape),
        hub=hf or "",
        data=data,
        precisions=tuple(quantize or ()),
        metric=parse(metric) if metric else None,
        name=name,
        latency_s=latency,
    )
    await work(config, logs or config.parent / "out/logs", options, dry_run=dry_run)


@app.command()
def fetch(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Models of cinquefoil.yaml; none: all of them."),
    ] = None,
    config: Config = DEPLOYMENT,
) -> None:
    """Download the files of variants that have a `uri` into `model_cache.folder`.

    Each must have the `sha256` of the deployment file. Files that exist stay; an interrupted
    download resumes. For a service's start: the exit status is 1 while a file is missing.
    """
    from services.cli.models.fetch import fetch as work

    work(config, models or ())


@app.command()
async def remove(
    model: Name, dry_run: DryRun = False, config: Config = DEPLOYMENT, logs: Logs = None
) -> None:
    """Remove a model from the deployment file, and stop serving it where `up` runs here.

    With --dry-run a running planner shows the plan that would follow.
    """
    from services.cli.models.change import remove as work

    await work(config, logs or config.parent / "out/logs", model, dry_run=dry_run)


@app.command("policy")
async def policy(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    model: Annotated[
        str, typer.Argument(help="Model as cinquefoil.yaml names it; none: list all of them.")
    ] = "",
    discipline: Annotated[
        str, typer.Option(help=f"Which request is next: {', '.join(DISCIPLINES)}.")
    ] = "",
    choice: Annotated[
        str,
        typer.Option(help=f"Which instance takes it: {', '.join(CHOICES)}."),
    ] = "",
    threshold: Annotated[
        float | None,
        typer.Option(
            help="CIT of carbondis, 0.5..2: the CIR above which carbon intensity is high."
        ),
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="First restore the policy of cinquefoil.yaml.")
    ] = False,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Show or change how models' requests are queued and how instances are chosen.

    What is not given stays as it is. Routers follow at once; the policy survives restarts.
    """
    from cinquefoil.planner.v1.planner_pb2 import SetPolicyRequest
    from services.cli.plan.orders import list_policies, set_policy

    if not model:
        if discipline or choice or threshold is not None or reset:
            raise typer.BadParameter("name the model that the options are for")
        await list_policies(config, as_json=json)
        return
    request = SetPolicyRequest(
        model=model,
        discipline=discipline,
        instance_choice=choice,
        intensity_threshold=threshold,
        reset=reset,
    )
    await set_policy(config, request, as_json=json)


async def evaluate(  # noqa: PLR0913 - a command's options are its arguments
    model: Annotated[str, typer.Argument(help="A language model of the deployment file.")],
    *,
    variant: Annotated[
        list[str] | None, typer.Option(help="Variant to measure; may be repeated. Default: all.")
    ] = None,
    items: Annotated[int, typer.Option(min=8, max=1000, help="Questions.")] = 320,
    seed: Annotated[int, typer.Option(min=0, help="Seed of their choice.")] = 0,
    save: Annotated[
        bool, typer.Option("--save", help="Put the accuracies into the deployment file.")
    ] = False,
    wait: Annotated[
        str,
        typer.Option(
            "--wait",
            help="Submit the questions as a batch of the running deployment, answered within "
            "1h, 4h, 24h or 72h when that costs least carbon.",
        ),
    ] = "",
    batch: Annotated[
        str, typer.Option("--batch", help="Read the answers to a batch of --wait.")
    ] = "",
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Measure the accuracy of a language model's variants by multiple-choice questions.

    Each variant is started by itself on this machine's cores (one with an address is used there),
    given the same questions, and stopped. The questions are made here: small facts, sums, orders,
    words. They distinguish sizes and quantisations of one family, and rank no models.

    For example:

    - `cinquefoil eval chat --save`
    - `cinquefoil eval chat --variant q4 --items 100 --json`
    - `cinquefoil eval chat --wait 24h`
    """
    from services.cli.evaluate import waiting
    from services.cli.evaluate.run import evaluate

    if (wait or batch) and variant:
        raise typer.BadParameter("a batch is answered by what serves: leave --variant out")
    if batch:
        await waiting.show(config, model, batch, save=save, as_json=json)
        return
    if wait:
        await waiting.submit(config, model, wait, count=items, seed=seed)
        return
    await evaluate(config, model, variant or (), count=items, seed=seed, save=save, as_json=json)
