"""`cinquefoil init|up|status|history|doctor|health|infer|demo|simulate`: a whole deployment."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from services.cli.commands import model_options as given
from services.cli.commands.model_options import item_shapes, module
from services.cli.commands.options import DEPLOYMENT, Config, Json

if TYPE_CHECKING:
    from services.cli.init.devices import Devices


def init(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    folder: Annotated[Path, typer.Argument(help="Folder to write into.", file_okay=False)] = Path(),
    onnx: given.Onnx = None,
    pytorch: given.PyTorch = None,
    weights: given.Weights = None,
    hf: given.HuggingFace = None,
    triton_repo: Annotated[Path | None, typer.Option(help="Model repository of Triton.")] = None,
    data: given.Data = None,
    metric: given.MetricOption = None,
    shape: given.Shape = None,
    quantize: given.Quantize = None,
    name: given.ModelName = "",
    latency: given.Latency = None,
    gmacs: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=NUMBER", help="Arithmetic of a Triton model without ONNX."),
    ] = None,
    control: Annotated[
        bool | None,
        typer.Option(
            "--control/--no-control", help="Whether the agent may change this machine's GPUs."
        ),
    ] = None,
) -> None:
    """Write a deployment file, cinquefoil.yaml: the example's, or one for models that exist.

    Signatures, arithmetic and accuracies are read and measured; each figure has a comment that says
    how. Without --onnx, --pytorch, --hf or --triton-repo: the example, and its client, infer.py;
    existing files are kept.

    For example:

    - `cinquefoil init --onnx net.onnx --data val.npz --quantize int8`
    - `cinquefoil init --pytorch net.py:Net --weights net.pt --data val.npz`
    - `cinquefoil init --triton-repo /models`
    """
    chosen = [source for source in (onnx, pytorch, hf, triton_repo) if source]
    if len(chosen) > 1:
        raise typer.BadParameter("give one of --onnx, --pytorch, --hf and --triton-repo")
    if not chosen:
        from services.local.example import write_missing

        folder.mkdir(parents=True, exist_ok=True)
        written = write_missing(folder)
        known = f"wrote {', '.join(map(str, written))}" if written else "every file exists already"
        typer.echo(known)
        return
    from rich.console import Console

    from services.cli.init.metric import parse
    from services.cli.init.run import Options
    from services.cli.init.run import init as work
    from services.cli.plan.what_if import numbers

    options = Options(
        files=tuple(onnx or ()),
        pytorch=module(pytorch, weights),
        shapes=item_shapes(shape),
        hub=hf or "",
        repository=triton_repo,
        data=data,
        precisions=tuple(quantize or ()),
        metric=parse(metric) if metric else None,
        name=name,
        latency_s=latency,
        gmacs=numbers("--gmacs", "MODEL=NUMBER", gmacs),
    )
    work(folder, options, _may_control(control), Console())


def _may_control(given: bool | None) -> "Callable[[Devices], bool]":
    """Return a function that decides on control of GPUs: by the option, or by a prompt."""

    def may_control(devices: "Devices") -> bool:
        if given is not None:
            return given
        listed = "".join(f"\n  {uuid}  {name}" for uuid, name in devices.gpus.items())
        question = f"GPUs:{listed}\nMay the agent create slices on them and start workers?"
        if sys.stdin.isatty():
            return typer.confirm(question, default=False)
        typer.echo(f"{question} No terminal to answer at: no. --control says yes.", err=True)
        return False

    return may_control


async def up(
    config: Config = DEPLOYMENT,
    logs: Annotated[
        Path | None, typer.Option(help="Folder of the services' logs. Default: out/logs.")
    ] = None,
) -> None:
    """Start every service of the deployment here and keep it running; ctrl-c stops it.

    Each service is a process of its own and is restarted when it crashes. Models of the demo that
    the file names and that do not exist yet are trained first.
    """
    from services.cli.up.run import up as work

    await work(config, logs or config.parent / "out/logs")


async def status(
    config: Config = DEPLOYMENT,
    json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until ctrl-c.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between refreshes.")] = 1.0,
) -> None:
    """Show zones, GPUs with their slices, models with their variants, energy and carbon.

    A service that does not answer is named, and the other services' part is shown; the exit status
    is then 1.
    """
    from services.cli.status.show import follow, show

    if watch:
        await follow(config, as_json=json, interval_s=interval)
    elif not await show(config, as_json=json):
        raise typer.Exit(1)


async def history(  # noqa: PLR0913 - a command's options are its arguments
    *,
    config: Config = DEPLOYMENT,
    hours: Annotated[int, typer.Option(min=1, max=24 * 400, help="Hours to look back.")] = 24,
    step: Annotated[
        str, typer.Option(help="Length of a point: 1m, 10m, 1h. Default: the shortest possible.")
    ] = "",
    model: Annotated[str, typer.Option(help="Of the models only this one.")] = "",
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV: a row for each time.")] = False,
) -> None:
    """Show the grid, power, load and latency over time, and what happened last.

    A line of blocks per series, from its lowest value to its highest; blank: nothing is known, for
    example because no planner ran. JSON is that of the console's `/api/history`.
    """
    from services.cli.console.durations import seconds
    from services.cli.history.show import show

    if json and csv:
        raise typer.BadParameter("give one of --json and --csv")
    try:
        step_s = seconds(step) if step else 0
    except ValueError as error:
        raise typer.BadParameter(f"--step: {error}") from error
    form = "json" if json else "csv" if csv else "table"
    await show(config, hours, step_s=step_s, model=model, form=form)


def doctor(config: Config = DEPLOYMENT, json: Json = False) -> None:
    """Check whether this machine can run the deployment; each line has a remedy.

    Driver, GPUs with MIG mode, MPS, ONNX Runtime's libraries, ports, disks, certificates and the
    deployment file. Nothing is changed. Exit status 1 where something is bad.
    """
    from services.cli.doctor.run import doctor as work

    if not work(config, as_json=json):
        raise typer.Exit(1)


async def health(
    services: Annotated[
        list[str],
        typer.Argument(
            metavar="SERVICE", help="carbon, planner, predictor, router, or a node's name."
        ),
    ],
    config: Config = DEPLOYMENT,
    own: Annotated[
        bool,
        typer.Option("--own", help="Show the service's own certificate, not the operator's."),
    ] = False,
) -> None:
    """Check that services serve (grpc.health.v1); exit status 1 where one does not.

    Of planners that stand by for one another, one has to.
    """
    from services.cli.client import check

    for service in services:
        await check(config, service, own=own)
        typer.echo(f"{service}: serving" if len(services) > 1 else "serving")


async def demo(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    config: Config = Path("demo.yaml"),
    seconds: Annotated[
        float, typer.Option(min=1, max=600, help="How long the simulated day takes, seconds.")
    ] = 60.0,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.1, help="Requests per second to each model. Default: the file's demand."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for report, chart and logs.")] = Path(
        "out/demo"
    ),
    seed: Annotated[int, typer.Option(help="Random seed of the arrivals.")] = 0,
    train_only: Annotated[
        bool, typer.Option("--train-only", help="Train the models and stop.")
    ] = False,
    stay: Annotated[
        bool,
        typer.Option("--stay", help="Then keep Cinquefoil's suite, its load and the console."),
    ] = False,
) -> None:
    """Serve a day of the grid in a minute, twice: as BASE and as Cinquefoil.

    Trains a family of real models, starts both suites on simulated GPUs, sends both the same
    requests at the same moments, and reports the saving and its price. Where there is no
    demo.yaml, it is written first. Exit status 1 if a request was lost.
    """
    from services.cli.demo.run import Options, train
    from services.cli.demo.run import demo as work
    from services.local.example import write_missing

    if config == Path("demo.yaml"):
        for written in write_missing(config.parent, [config.name]):
            typer.echo(f"wrote {written}")
    if train_only:
        await train(config)
    elif not await work(config, out, Options(seconds, rate, seed, stay)):
        raise typer.Exit(1)


async def receipts(  # noqa: PLR0913 - a command's options are its arguments
    model: Annotated[str, typer.Argument(help="Of this model only; empty: of every model.")] = "",
    *,
    config: Config = DEPLOYMENT,
    variant: Annotated[str, typer.Option(help="Of this variant only.")] = "",
    sample: Annotated[float, typer.Option(help="Share of the answers, > 0, <= 1.")] = 1.0,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many receipts.")] = None,
    json: Json = False,
) -> None:
    """Follow the receipts of answers: variant, latency, energy and carbon of each.

    All of them or a sample, at most 512 a second from each router process; they name no client and
    no content.
    """
    from cinquefoil.router.v1.router_pb2 import WatchReceiptsRequest
    from services.cli.infer.receipts import follow

    request = WatchReceiptsRequest(sample=sample, model=model, variant=variant)
    await follow(config, request, as_json=json, count=count)


async def infer(  # noqa: PLR0913 - a command's options are its arguments
    model: Annotated[str, typer.Argument(help="A model of the deployment file.")],
    *,
    config: Config = DEPLOYMENT,
    image: Annotated[
        int | None, typer.Option(min=0, max=718, help="Held-out handwritten digit to send.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--input", help="What to send: a .npy array, one item or a batch, or an .npz file."
        ),
    ] = None,
    item: Annotated[int, typer.Option(min=0, help="Which item of the .npz file.")] = 0,
    prompt: Annotated[
        str | None, typer.Option(help="Prompt for a language model; its text is streamed.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Maximum number of generated tokens.")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature; 0: the likeliest text.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed; equal seeds give equal text.")
    ] = None,
    stop: Annotated[str | None, typer.Option(help="Text that ends the generation.")] = None,
    json: Json = False,
) -> None:
    """Send one request and print the answer, the variant that gave it, and its cost.

    An .npz file has an array for each input, items first. The demo's model is sent a held-out digit
    where nothing is given.
    """
    given = [value for value in (image, source, prompt) if value is not None]
    if len(given) > 1:
        raise typer.BadParameter("give one of --image, --input and --prompt")
    if prompt is not None:
        from services.cli.infer.generate import Sampling, generate

        sampling = Sampling(max_tokens, temperature, seed, stop)
        await generate(config, model, prompt, sampling, as_json=json)
        return
    from services.cli.infer.send import send

    chosen = None if source is None else (source, item)
    await send(config, model, digit=image, source=chosen, as_json=json)


async def load(  # noqa: PLR0913 - a command's options are its arguments
    model: Annotated[str, typer.Argument(help="A model of the deployment file.")],
    *,
    config: Config = DEPLOYMENT,
    rps: Annotated[
        float | None,
        typer.Option(min=1e-3, max=1e5, help="Mean rate, requests/s. Default: its demand_rps."),
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            help="constant; day: a day's curve in --seconds; bursts; or a CSV file with a column "
            "rps (rates) or arrival_s (times)."
        ),
    ] = "constant",
    seconds: Annotated[float, typer.Option(min=1, max=1e6, help="Length of the load, s.")] = 60.0,
    source: Annotated[
        Path | None,
        typer.Option(
            "--input", help=".npz or .npy, items first; for a language model a prompt a line."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the arrivals.")] = 0,
    json: Json = False,
) -> None:
    """Send a load to a model of a suite that runs, and account for every request.

    An open loop: requests are sent when they are due, whatever becomes of those before, and latency
    counts from the moment planned. Models of the demo are sent held-out digits. Ctrl-c ends it
    early. Exit status 1 where a request was lost.

    For example:

    - `cinquefoil load digits --rps 50 --profile day --seconds 600`
    - `cinquefoil load net --input val.npz --profile bursts`
    """
    from services.cli.load.run import Options
    from services.cli.load.run import load as work

    options = Options(rps, profile, seconds, source, seed)
    if not await work(config, model, options, as_json=json):
        raise typer.Exit(1)


def simulate(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    scenario: Annotated[Path, typer.Argument(help="Scenario file.")],
    out: Annotated[Path, typer.Option(help="Folder for JSON and the HTML report.")] = Path(
        "out/simulate"
    ),
    strategy: Annotated[
        list[str] | None,
        typer.Option(help="Policy of the scenario, or any strategy; may be repeated."),
    ] = None,
    detail: Annotated[
        Literal["full", "sampled"] | None,
        typer.Option(
            help="Simulate every request, or sampled intervals. Default: as the scenario says."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Random seed. Default: the scenario's.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, help="Policies simulated at a time. Default: one on each CPU."),
    ] = None,
    json: Json = False,
) -> None:
    """Simulate days of grid and load in virtual time, with the code that runs live.

    The planner's strategies, triggers, placement and rollouts, the router's queue and choice of
    instances, and the workers' batching are the suite's own; GPUs are simulated from the profiles.
    """
    from services.cli.simulate.run import simulate as work

    work(
        scenario,
        out,
        strategy or (),
        processes=processes,
        as_json=json,
        detail=detail,
        seed=seed,
    )
