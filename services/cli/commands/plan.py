"""`cinquefoil plan ...`: decisions with their reasons and alternatives, and orders."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from services.cli.commands.options import DEPLOYMENT, LAST_VERSION, Config, Json, Version, group

app = group(
    "plan",
    "Plans: what was decided, why, and what the alternatives were.\n\n"
    "See before you act: `plan dry-run` decides without acting, now or under other "
    "circumstances; `plan apply` carries its plan out. `plan explain` says what binds a plan "
    "and what the runner-up loses, `plan diff` what changes between two. `plan pin` holds "
    "what runs, `plan freeze` holds it but for losses, `plan rollback` goes back.",
)


@app.command("list")
async def list_(
    config: Config = DEPLOYMENT,
    json: Json = False,
    limit: Annotated[
        int, typer.Option("-n", "--limit", min=1, max=1000, help="Maximum number of plans to show.")
    ] = 20,
) -> None:
    """List the newest plans: predicted and observed figures, and their deviation."""
    from services.cli.plan.show import show_list

    await show_list(config, limit=limit, as_json=json)


@app.command()
async def show(
    version: Version = 0,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Show one plan: its reason, segments, predicted and observed figures."""
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

    After a restart of the planner, continues with the next plan: none is missed.
    With --json, one line per change.
    """
    from services.cli.plan.watch import follow

    await follow(config, after=after, as_json=json)


@app.command()
def strategies(json: Json = False) -> None:
    """Describe each strategy in one line."""
    from services.cli.plan.solve import show_strategies

    show_strategies(as_json=json)


@app.command("dry-run")
async def dry_run(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    demand: Annotated[
        list[str] | None, typer.Option(metavar="MODEL=RPS", help="Demand, req/s; repeatable.")
    ] = None,
    intensity: Annotated[
        list[str] | None,
        typer.Option(metavar="ZONE=GRAMS", help="Carbon intensity, gCO2e/kWh; repeatable."),
    ] = None,
    carbon_weight: Annotated[
        float | None, typer.Option(help="0: only accuracy counts; 1: only carbon.")
    ] = None,
    accuracy_mean: Annotated[
        float | None,
        typer.Option(help="Mean accuracy over a period relative to the best variant; 0: none."),
    ] = None,
    accuracy_floor: Annotated[
        float | None,
        typer.Option(help="Minimum accuracy at each moment relative to the best variant, 0..1."),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="ZONE=EUR", help="Price of a kWh, EUR; repeatable."),
    ] = None,
    carbon_price: Annotated[
        float | None,
        typer.Option(help="Least cost, at this price of a tonne of CO2e, EUR."),
    ] = None,
    accuracy_value: Annotated[
        float | None,
        typer.Option(help="Least cost, with a point of accuracy in 1,000 requests worth it, EUR."),
    ] = None,
    carbon_budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KG/PERIOD",
            help="Carbon budgets in the place of the file's, such as 40/month or "
            "2/day:MODEL,MODEL; repeatable.",
        ),
    ] = None,
    strategy: Annotated[str, typer.Option(help="See `plan strategies`.")] = "",
    objective: Annotated[
        Literal["clover", "fewest-gpus", "infadapter"] | None,
        typer.Option(help="The only goal, in place of the configured ones."),
    ] = None,
    without_gpu: Annotated[
        list[str] | None, typer.Option(metavar="UUID", help="GPU to leave out; repeatable.")
    ] = None,
    add_gpus: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE:NODE:COUNT", help="GPUs to add to a node; repeatable."),
    ] = None,
    waiting_within: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="All that waits is due within it, such as 4h."),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Carry the plan out at once.")] = False,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Show the plan for present or other circumstances, and why. Changes nothing without --apply.

    Options that are not given keep their present values. The plan can be applied for 10 minutes,
    unless demand, intensity, prices, carbon budgets or GPUs were given.

    For example:

    - `cinquefoil plan dry-run`
    - `cinquefoil plan dry-run --demand digits=200 --intensity US-CAL=50`
    - `cinquefoil plan dry-run --carbon-weight 0.9 --accuracy-floor 0.98 --apply`
    - `cinquefoil plan dry-run --waiting-within 4h`
    - `cinquefoil plan dry-run --add-gpus a100-40gb:node-0:2 --objective fewest-gpus`
    """
    from cinquefoil.planner.v1.plan_pb2 import Goals
    from cinquefoil.planner.v1.planner_pb2 import WhatIf
    from services.cli.plan.show import dry_run as work
    from services.cli.plan.what_if import added_gpus, cost, numbers, within
    from services.cli.plan.what_if import carbon_budget as budget

    what_if = WhatIf(
        demand_rps=numbers("--demand", "MODEL=RPS", demand),
        intensity_gco2e_per_kwh=numbers("--intensity", "ZONE=GRAMS", intensity),
        carbon_weight=carbon_weight,
        accuracy_floor=accuracy_floor,
        accuracy_mean=accuracy_mean,
        strategy=strategy,
        goals=Goals(**{objective.replace("-", "_"): 1.0}) if objective else None,
        without_gpus=without_gpu,
        added_gpus=map(added_gpus, add_gpus or ()),
        energy_price_eur_per_kwh=numbers("--price", "ZONE=EUR", price),
        cost=cost(carbon_price, accuracy_value),
        carbon_budgets=map(budget, carbon_budget or ()),
    )
    if waiting_within is not None:
        what_if.waiting_within.FromTimedelta(within("--waiting-within", waiting_within))
    await work(config, what_if, apply=apply, as_json=json)


@app.command()
async def explain(
    version: Version = 0,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Explain a plan: binding constraints, promises, the runner-up, and BASE for comparison."""
    from services.cli.plan.show import explain as work

    await work(config, version=version, as_json=json)


@app.command()
async def diff(
    from_version: Annotated[
        int,
        typer.Argument(
            min=0, max=LAST_VERSION, metavar="FROM", help="Plan version; 0: the active one."
        ),
    ] = 0,
    to_version: Annotated[
        int,
        typer.Argument(min=0, max=LAST_VERSION, metavar="TO", help="Plan version; 0: the newest."),
    ] = 0,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Show the changes from one plan to another: segments, shares, clocks, and promises.

    For example:

    - `cinquefoil plan diff 7`: plan 7 and the newest
    - `cinquefoil plan diff 7 8`
    """
    from services.cli.plan.show import diff as work

    await work(config, from_version, to_version, as_json=json)


@app.command()
async def apply(
    proposal_id: Annotated[str, typer.Argument(help="The ID that `plan dry-run` printed.")],
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Carry out the plan of a dry run.

    A proposal is valid for 10 minutes, and only while the fleet runs what it was made for.
    """
    from cinquefoil.planner.v1.planner_pb2 import ApplyRequest
    from services.cli.plan.orders import give, report_plan

    plan = (await give(config, ApplyRequest(proposal_id=proposal_id))).plan
    report_plan(plan, f"Plan {plan.version} is being rolled out.", as_json=json)


@app.command()
async def pin(
    version: Annotated[
        int,
        typer.Argument(min=0, max=LAST_VERSION, help="The active plan; 0: whichever is active."),
    ] = 0,
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Hold the active plan: no re-planning until `plan unpin`, over restarts too."""
    from cinquefoil.planner.v1.planner_pb2 import PinRequest
    from services.cli.plan.orders import give, report

    held = (await give(config, PinRequest(version=version))).version
    sentence = f"Plan {held} is pinned: no other is made until `cinquefoil plan unpin`."
    report({"pinned_version": held}, sentence, as_json=json)


@app.command()
async def unpin(config: Config = DEPLOYMENT, json: Json = False) -> None:
    """Release a pinned plan: the planner re-plans by itself again."""
    from cinquefoil.planner.v1.planner_pb2 import UnpinRequest
    from services.cli.plan.orders import give, report

    await give(config, UnpinRequest())
    sentence = "No plan is pinned; the planner makes plans by itself."
    report({"pinned_version": 0}, sentence, as_json=json)


@app.command()
async def freeze(
    until: Annotated[
        str, typer.Option(help="When it ends: 4h or 2d from now, or 2026-12-27T08:00 (UTC).")
    ],
    reason: Annotated[str, typer.Option(help="Why, for those who look at the status.")] = "",
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Replace only lost capacity until a time, over restarts too: nothing else is reconfigured.

    Plans of operators (`plan apply`, `plan rollback`) are refused meanwhile.

    For example:

    - `cinquefoil plan freeze --until 12h --reason "sales event"`
    """
    from services.cli.plan.orders import freeze_plans

    await freeze_plans(config, until, reason, as_json=json)


@app.command()
async def unfreeze(config: Config = DEPLOYMENT, json: Json = False) -> None:
    """End a freeze."""
    from cinquefoil.planner.v1.planner_pb2 import UnfreezeRequest
    from services.cli.plan.orders import give, report

    await give(config, UnfreezeRequest())
    report({"frozen_until": None}, "Not frozen; plans are carried out again.", as_json=json)


@app.command()
async def rollback(
    version: Annotated[int, typer.Argument(min=1, max=LAST_VERSION, help="Version to go back to.")],
    config: Config = DEPLOYMENT,
    json: Json = False,
) -> None:
    """Carry an earlier plan out again, as a new version, and pin it until `plan unpin`."""
    from cinquefoil.planner.v1.planner_pb2 import RollbackRequest
    from services.cli.plan.orders import give, report_plan

    plan = (await give(config, RollbackRequest(version=version))).plan
    sentence = (
        f"Plan {version} is being rolled out again as plan {plan.version}, and pinned: no other "
        "plan is made until `cinquefoil plan unpin`."
    )
    report_plan(plan, sentence, as_json=json)


@app.command()
async def graph(
    version: Version = 0,
    format_: Annotated[
        Literal["json", "graphml", "dot", "png"],
        typer.Option("--format", help="json: node-link; graphml and dot: for graph tools; png."),
    ] = "json",
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write; needed for png. Default: stdout.")
    ] = None,
    config: Config = DEPLOYMENT,
) -> None:
    """Export or draw the configuration graph of a plan (CLOVER, Definition 1).

    Vertices are variants and slice types; an edge's weight is the number of segments that run the
    variant on slices of that type, with one batch size, number of processes and clock.

    For example:

    - `cinquefoil plan graph --format png --out plan.png`
    - `cinquefoil plan graph 3 --format dot | dot -Tsvg > plan.svg`
    """
    from services.cli.plan.graph import show_graph

    if format_ == "png" and out is None:
        raise typer.BadParameter("--format png needs --out FILE")
    await show_graph(config, version=version, format_=format_, out=out)


@app.command()
def solve(  # noqa: PLR0913, PLR0917 - a command's options are its arguments
    profiles: Annotated[Path, typer.Option(help="Folder of measured tables, one per model.")],
    services: Annotated[
        Path | None,
        typer.Option(help="What to serve, CSV or YAML: model, rate_rps, latency_s."),
    ] = None,
    rates: Annotated[
        Path | None, typer.Option(help="Or ParvaGPU's format: requests/s, a row per scenario ...")
    ] = None,
    latencies: Annotated[
        Path | None, typer.Option(help="... and latency objectives, ms, a row per scenario.")
    ] = None,
    scenario: Annotated[int, typer.Option(help="Row of --rates and --latencies, from 1.")] = 1,
    objective: Annotated[
        Literal["fewest-gpus", "infadapter"], typer.Option(help="What a good plan is.")
    ] = "fewest-gpus",
    strategy: Annotated[str, typer.Option(help="exact, parvagpu, annealing, ...")] = "exact",
    gpu: Annotated[str, typer.Option(help="GPU type that was measured.")] = "a100-80gb",
    gpus: Annotated[
        int | None,
        typer.Option(min=1, help="Number of GPUs available. Default: as many as needed."),
    ] = None,
    latency_share: Annotated[
        float,
        typer.Option(min=0.01, max=1, help="Share of the latency objective that a batch may take."),
    ] = 0.5,
    max_utilisation: Annotated[
        float, typer.Option(min=0.01, max=1, help="Maximum share of a segment's throughput to use.")
    ] = 1.0,
    max_processes: Annotated[
        int, typer.Option(min=1, help="Maximum number of processes per segment.")
    ] = 5,
    time_limit: Annotated[
        float, typer.Option(min=0.01, help="Time limit of the search, seconds.")
    ] = 10.0,
    json: Json = False,
) -> None:
    """Plan capacity from measured profiles: which segments on how many GPUs, without a suite.

    Reads ParvaGPU's files (--rates, --latencies) or a list of services (--services). Exit status 1
    if a file is invalid, or if the GPUs cannot serve the whole demand.
    """
    from services.cli.plan.solve import show_solution
    from services.kit.config import Goals
    from services.planner.capacity.fleet_sizing import Terms

    demand: Path | tuple[Path, Path, int]
    if services is not None and rates is None and latencies is None:
        demand = services
    elif services is None and rates is not None and latencies is not None:
        demand = rates, latencies, scenario
    else:
        raise typer.BadParameter("give --services, or both --rates and --latencies")
    terms = Terms(
        goals=Goals.model_validate({"clover": 0, objective.replace("-", "_"): 1}),
        gpus=gpus,
        latency_share=latency_share,
        max_utilisation=max_utilisation,
        max_processes=max_processes,
        time_limit_s=time_limit,
    )
    if not show_solution(profiles, demand, gpu, strategy, terms, as_json=json):
        raise typer.Exit(1)
