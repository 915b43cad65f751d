"""`cinquefoil models`: how models are served."""

from typing import Annotated

import typer

from services.cli.commands.options import DEPLOYMENT, Config, Json

# Written out: `--help` must not load the deployment's types. A test compares.
DISCIPLINES = ("fcfs", "edf", "priority", "ssjf")
CHOICES = (
    "shares",
    "idle_longest",
    "least_expected_completion",
    "carbondis",
    "carbon_aware",
)

app = typer.Typer(name="models", help="How models are served.", no_args_is_help=True)


@app.callback()
def models() -> None:
    """Keep `models` a group although it has one command."""


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
