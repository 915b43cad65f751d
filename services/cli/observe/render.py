"""The report as tables for a terminal."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from rich.console import Group, RenderableType
from rich.text import Text

from services.cli.console import quantities
from services.cli.console.output import table
from services.cli.observe.advice import Step, shares
from services.cli.observe.figures import Figures, WorkloadFigures

NONE = "-"
Row = tuple[str, ...]


def render(figures: Figures, steps: Sequence[Step]) -> RenderableType:
    """Return the report."""
    return Group(
        Text(headline(figures)),
        table("GPUs", *GPU_COLUMNS, rows=gpu_rows(figures)),
        table("What drew it", *WORKLOAD_COLUMNS, rows=workload_rows(figures)),
        *_servers(figures),
        table("What each step would save", *STEP_COLUMNS, rows=step_rows(steps, figures)),
        Text(),
        *(Text(f"{each.name}: {each.method}.{_cost(each)}", style="dim") for each in steps),
        *(Text(each, style="yellow") for each in remarks(figures)),
    )


def headline(figures: Figures) -> str:
    """Return the result in a sentence."""
    length = timedelta(seconds=round(figures.observed_s))
    emitted = [gpu.carbon_gco2e for gpu in figures.gpus]
    known = [each for each in emitted if each is not None]
    carbon = f", {quantities.carbon(sum(known))}" if len(known) == len(emitted) and known else ""
    energy_j = figures.energy_j
    idle = sum(gpu.idle_j for gpu in figures.gpus) / energy_j if energy_j > 0 else 0.0
    return (
        f"{length} from {figures.since:%Y-%m-%d %H:%M} UTC: {quantities.energy(energy_j)}{carbon}, "
        f"{quantities.percent(idle)} of it while nothing was computed. Observing took "
        f"{100 * figures.cpu_share:.2f} % of a core."
    )


GPU_COLUMNS = (">GPU", "type", ">power", ">idle", ">busy", ">energy", ">carbon")


def gpu_rows(figures: Figures) -> Iterator[Row]:
    """Yield a row for each GPU."""
    for gpu in figures.gpus:
        yield (
            str(gpu.index),
            gpu.type,
            f"{gpu.mean_w:.0f} W",
            f"{gpu.idle_w:.0f} W{'' if gpu.idle_is_measured else ' *'}",
            quantities.percent(gpu.busy),
            quantities.energy(gpu.energy_j),
            _carbon(gpu.carbon_gco2e),
        )


WORKLOAD_COLUMNS = ("workload", "GPU", ">active", ">+ idle share", ">carbon", "shares by")


def workload_rows(figures: Figures) -> Iterator[Row]:
    """Yield a row for each workload, and one for energy of none."""
    for each in figures.workloads:
        yield (
            _name(each),
            ", ".join(map(str, each.gpus)),
            quantities.energy(each.active_j),
            quantities.energy(each.idle_share_j),
            _carbon(each.carbon_gco2e),
            ", ".join(method.replace("_", " ") for method in each.methods),
        )
    unattributed_j = sum(gpu.unattributed_j for gpu in figures.gpus)
    shared_j = sum(each.idle_share_j for each in figures.workloads)
    idle_j = sum(gpu.idle_j for gpu in figures.gpus) - shared_j
    if unattributed_j > 0 or idle_j > 1e-6:
        known = quantities.energy
        yield "no workload", "", known(unattributed_j), known(max(idle_j, 0.0)), "", ""


def _name(each: WorkloadFigures) -> str:
    kind = "" if each.kind == "process" else f"{each.kind} "
    name = each.name if each.name.startswith(each.kind) else f"{kind}{each.name}"
    return f"{name} ({each.model})" if each.model and each.model not in name else name


SERVER_COLUMNS = (
    *("server", ">req/s", ">tok/s", ">open", ">TTFT p95", ">TPOT p95"),
    *(">J/req", ">J/tok", ">g/1k tok"),
)


def server_rows(figures: Figures) -> Iterator[Row]:
    """Yield a row for each model of each server."""
    for each in figures.servers:
        yield (
            f"{each.server} {each.model}".strip(),
            _number(each.rate_rps),
            _number(each.tokens_per_s),
            f"{each.mean_running:.1f}",
            _seconds(each.first_token_p95_s),
            _seconds(each.token_p95_s),
            _number(each.j_per_request),
            _number(each.j_per_token),
            _number(each.gco2e_per_1k_tokens),
        )


def _servers(figures: Figures) -> Iterator[RenderableType]:
    if figures.servers:
        yield table("Servers", *SERVER_COLUMNS, rows=server_rows(figures))


STEP_COLUMNS = ("step", "what Cinquefoil would do", ">would save")


def step_rows(steps: Sequence[Step], figures: Figures) -> Iterator[Row]:
    """Yield a row for each step."""
    for step in steps:
        yield step.name, step.action, saving(step, figures)


def saving(step: Step, figures: Figures) -> str:
    """Return the range of a step: "8 to 14 %"; "-": not determined."""
    found = [100 * each for each in shares(step, figures)]
    if not found:
        return NONE
    what = " of carbon" if step.carbon_share is not None else ""
    low, high = (f"{each:.0f}" if each >= 10 or each == 0 else f"{each:.1f}" for each in found)
    return f"{low} %{what}" if low == high else f"{low} to {high} %{what}"


def remarks(figures: Figures) -> Iterator[str]:
    """Yield what the figures lack, and how to have it."""
    yield "Savings are of all energy observed, each step by itself: they overlap."
    if not figures.electricity:
        yield "Carbon: give the zone of the electricity (--zone) or its intensity (--intensity)."
    if any(not gpu.idle_is_measured for gpu in figures.gpus):
        yield "* of the GPU's type: it was never seen without computation."
    if not figures.servers:
        yield "No metrics page was found on the ports of processes on GPUs; --server names one."
    yield from (
        f"{each.url}: {each.shared_by} models share a process: joules per request are not known."
        for each in figures.servers
        if each.shared_by > 1
    )
    methods = {method for each in figures.workloads for method in each.methods}
    if "slices_held" in methods:
        yield (
            "In MIG mode this GPU does not say what each instance computes: active energy is "
            "split by the SMs that workloads hold."
        )
    if figures.energy_j <= 0:
        yield "The GPUs' meters did not advance."


def _cost(step: Step) -> str:
    return f" Cost: {step.cost}." if step.cost and step.low_j != 0.0 else ""


def _carbon(carbon_gco2e: float | None) -> str:
    return NONE if carbon_gco2e is None else quantities.carbon(carbon_gco2e)


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.3g}"


def _seconds(value_s: float | None) -> str:
    return NONE if value_s is None else quantities.seconds(value_s)
