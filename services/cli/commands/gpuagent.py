"""`cinquefoil gpuagent ...`: the agent of a node, and its GPUs for an operator."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from services.cli.commands.options import DEPLOYMENT, Config, ForceIdle, Json, group
from services.cli.commands.serve import NodeName, named_node, serve_gpuagent

app = group("gpuagent", "Runs a node's segments and configures its GPUs as planned.")
app.command("serve")(serve_gpuagent)

DIFFERS = 3
"""Exit status of `diff` with something to do, of `profile --compare` with tables that differ."""

File = Annotated[
    Path, typer.Argument(help="Desired state of the GPUs; `gpuagent export` writes one.")
]


@app.command()
async def export(config: Config = DEPLOYMENT, node: NodeName = "") -> None:
    """Print a node's slices, segments and clocks as a file that `gpuagent apply` reads."""
    from services.cli import desired

    await desired.export(config, named_node(node, config))


@app.command()
async def diff(
    file: File, config: Config = DEPLOYMENT, node: NodeName = "", json: Json = False
) -> None:
    """Print the steps from the present state to FILE's; exit status 3 where there are any."""
    from services.cli import desired

    name = named_node(node, config)
    if await desired.diff(config, name, file, as_json=json):
        raise typer.Exit(DIFFERS)


@app.command()
async def apply(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    file: File,
    config: Config = DEPLOYMENT,
    node: NodeName = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the steps only.")] = False,
    allow_gap: Annotated[
        bool, typer.Option("--allow-gap", help="A model may have less capacity for a while.")
    ] = False,
    json: Json = False,
) -> None:
    """Bring GPUs to the state in FILE, all of it or nothing; what may stay is not touched.

    If a step fails, or on ctrl-c, all steps are undone. A running planner re-plans from what it
    finds: pin its plan or stop it first.
    """
    from services.cli import desired

    name = named_node(node, config)
    if dry_run:
        await desired.diff(config, name, file, as_json=json)
    else:
        await desired.apply(config, name, file, allow_gap=allow_gap, as_json=json)


@app.command()
async def show(config: Config = DEPLOYMENT, node: NodeName = "", json: Json = False) -> None:
    """Show a node's GPUs: power, energy, clocks, slices, segments and conditions."""
    from services.cli.nodes import show_gpus

    await show_gpus(config, named_node(node, config), as_json=json)


@app.command()
def zone(
    node: Annotated[
        str, typer.Option(envvar="CINQUEFOIL_NODE__NAME", help="Name of the Kubernetes Node.")
    ],
    label: Annotated[str, typer.Option(help="Of the Node.")] = "cinquefoil.io/electricity-zone",
    file: Annotated[
        Path | None, typer.Option(help="Write it to this file, not to the terminal.")
    ] = None,
    account: Annotated[
        Path, typer.Option(help="Folder of the account's token and of the API server's ca.crt.")
    ] = Path("/var/run/secrets/kubernetes.io/serviceaccount"),
) -> None:
    """Read the electricity zone of a pod's machine from a label of its Kubernetes Node.

    The pod's account needs the right to `get` nodes. An agent that joins reads the file
    (CINQUEFOIL_NODE__ZONE_FILE). A node without the label has an empty zone: the agent's is
    `join.zone_of_topology`'s, or `join.zone`, then.
    """
    import os

    from services.gpuagent.node_label import node_label

    found = node_label(node, label, os.environ, account)
    if file is None:
        typer.echo(found)
        return
    try:
        file.write_text(f"{found}\n")
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint="--file") from error
    typer.echo(f"{node}: {label} is {found!r}", err=True)


Tables = tuple[Path, Path]
Number = TypeVar("Number", int, float)


@app.command()
async def profile(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL...", help="A model, or model/variant, of the deployment."),
    ] = None,
    config: Config = DEPLOYMENT,
    node: NodeName = "",
    gpu: Annotated[
        str,
        typer.Option(
            help="UUID of the GPU to measure on, or of all that hold the variant together, with "
            "commas between. Default: the node's, where it has no others."
        ),
    ] = "",
    slices: Annotated[str, typer.Option(help="For example 1g.5gb,3g.20gb. Default: all.")] = "",
    batch: Annotated[str, typer.Option(help="Default: planner.batch_sizes.")] = "",
    processes: Annotated[str, typer.Option(help="Default: 1 to planner.max_processes.")] = "",
    clocks: Annotated[
        str,
        typer.Option(
            help="Ratios of the highest clock; 1 is always measured. Default: planner.clock_ratios."
        ),
    ] = "",
    prompts: Annotated[
        str, typer.Option(help="Tokens of a language model's prompts. Default: 64,512.")
    ] = "",
    seconds: Annotated[float, typer.Option(min=0.1, help="Minimum time per point.")] = 2.0,
    too_slow: Annotated[
        float,
        typer.Option(
            min=0, help="Multiple of the SLO latency above which slower points are skipped."
        ),
    ] = 2.0,
    out: Annotated[Path, typer.Option(help="Folder for tables.")] = Path("out/profiles"),
    resume: Annotated[bool, typer.Option("--resume", help="Continue with what OUT holds.")] = False,
    force_idle: ForceIdle = False,
    every: Annotated[bool, typer.Option("--all", help="Measure every model.")] = False,
    save: Annotated[
        bool, typer.Option("--save", help="Put the tables into the deployment file as profiles.")
    ] = False,
    compare: Annotated[
        Tables | None,
        typer.Option(metavar="A B", help="Measure nothing: print where two tables differ."),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, help="Relative tolerance of --compare.")
    ] = 0.05,
) -> None:
    """Measure how models run on a GPU, and write tables that the planner reads.

    Variants with `gpus` run on as many together. The agent reserves GPUs and restores them
    afterwards. Slices, batch sizes, processes and clocks that cannot matter are left out. Every
    point is on disk before the next begins: after ctrl-c, --resume continues.
    """
    from services.cli.profile import run
    from services.cli.profile.request import Request
    from services.gpuagent.profiling.core.samples import Effort

    if compare is not None:
        if run.compare(*compare, tolerance):
            raise typer.Exit(DIFFERS)
        return
    if bool(models) == every:
        raise typer.BadParameter("name models, or give --all", param_hint="MODEL...")
    request = Request(
        models=tuple(models or ()),
        gpu=gpu,
        slices=tuple(filter(None, slices.split(","))),
        batch_sizes=_listed(batch, int, "--batch"),
        processes=_listed(processes, int, "--processes"),
        clock_ratios=_listed(clocks, float, "--clocks"),
        prompts=_listed(prompts, int, "--prompts"),
        out=out,
        resume=resume,
        force_idle=force_idle,
        save=save,
        too_slow=too_slow,
        effort=Effort(least_s=seconds, most_s=5 * seconds),
    )
    await run.profile(config, named_node(node, config), request)


def _listed(text: str, number: Callable[[str], Number], option: str) -> tuple[Number, ...]:
    try:
        return tuple(number(part) for part in text.split(",") if part)
    except ValueError:
        raise typer.BadParameter("numbers with commas between", param_hint=option) from None


Batch = Annotated[int, typer.Option(min=1, help="Batch size, where the model leaves it free.")]
Length = Annotated[
    int, typer.Option(min=1, help="Other sizes that the model leaves free, for example tokens.")
]
Sensitivities = Annotated[Path, typer.Option("--database", help="File that stores sensitivities.")]
DATABASE = Path("out/sensitivity/sensitivity.db")


@app.command()
async def sensitivity(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The network.")],
    gpu: Annotated[
        str,
        typer.Option(
            help="A type (a100-40gb): modelled from its data sheet. A UUID (GPU-...): measured "
            "there. Default: measured on the node's only one."
        ),
    ] = "",
    config: Config = DEPLOYMENT,
    node: NodeName = "",
    batch: Batch = 8,
    length: Length = 128,
    out: Annotated[Path, typer.Option(help="Folder for the plot.")] = Path("out/sensitivity"),
    database: Sensitivities = DATABASE,
    force_idle: ForceIdle = False,
    json: Json = False,
) -> None:
    """Show how a network's operators depend on the GPU's clock, as a table and a plot.

    Score 0: an operator is as fast at half the clock; score 2: it takes twice as long. Measuring
    reserves the GPU and holds its clock, as `profile` does; operators that the database knows are
    not measured again.
    """
    from services.cli.sensitivity import run
    from services.cli.sensitivity.measure import Place
    from services.kit.operators.random_inputs import Sizes

    on = (
        gpu
        if gpu and not gpu.startswith("GPU-")
        else Place(config, named_node(node, config), gpu, wait=force_idle)
    )
    sizes = Sizes(batch, length)
    await run.sensitivity(model, sizes, on, out=out, database=database, as_json=json)
