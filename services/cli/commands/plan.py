"""`cinquefoil plan ...`: what was decided, why, what else there was, and orders."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli.commands import plan_graph, plan_orders, plan_questions, plan_solve
from services.cli.commands.options import DEPLOYMENT, LAST_VERSION, Config, Json

app = typer.Typer(
    name="plan",
    help=(
        "What was decided, why, and what else there was.\n\n"
        "See before you act: `plan dry-run` decides without acting, now or under other "
        "circumstances; `plan apply` carries its plan out. `plan explain` says what binds a plan "
        "and what the runner-up loses, `plan diff` what changes between two. `plan pin` holds "
        "what runs, `plan rollback` goes back."
    ),
    no_args_is_help=True,
)


@app.command("list")
async def list_(
    config: Config = DEPLOYMENT,
    json: Json = False,
    limit: Annotated[
        int, typer.Option("-n", "--limit", min=1, max=1000, help="Most plans to show.")
    ] = 20,
) -> None:
    """List the newest plans: what each expected, what was seen, and the deviation."""
    from services.cli.plan.show import show_list

    await show_list(config, limit=limit, as_json=json)


@app.command()
async def show(
    version: Annotated[
        int, typer.Argument(min=0, max=LAST_VERSION, help="Plan version; 0: the newest.")
    ] = 0,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Show one plan: its reason, what it expected and what came of it, and its segments."""
    from services.cli.plan.show import show_one

    await show_one(config, version=version, as_json=json)


@app.command()
async def watch(
    config: Config = DEPLOYMENT,
    json: Json = False,
    after: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=LAST_VERSION,
            help="Begin with all plans after this version. Default: the newest.",
        ),
    ] = None,
) -> None:
    """Print every plan and every change of its state, until ctrl-c.

    When the planner restarts, goes on with the plan after the last one seen: none is missed.
    With --json, one line per change.
    """
    from services.cli.plan.watch import follow

    await follow(config, after=after, as_json=json)


@app.command()
def strategies(json: Json = False) -> None:
    """Say in one line each what the strategies do."""
    from services.cli.plan.strategies import show_strategies

    show_strategies(as_json=json)


app.command("dry-run")(plan_questions.dry_run)
app.command()(plan_questions.explain)
app.command()(plan_questions.diff)
app.command()(plan_graph.graph)
app.command()(plan_orders.apply)
app.command()(plan_orders.pin)
app.command()(plan_orders.unpin)
app.command()(plan_orders.rollback)
app.command()(plan_solve.solve)
