"""The report as one page, which needs nothing else."""

from pathlib import Path

from services.cli.observe import render
from services.cli.observe.advice import Step
from services.cli.observe.figures import Figures
from services.console import page
from services.console.page import Chart, Line, Table
from services.gpuagent.observation.core.timeline import BIN_S


def write(figures: Figures, steps: tuple[Step, ...], path: Path) -> None:
    """Write the report as one HTML file."""
    minutes = figures.minutes[:-1] if len(figures.minutes) > 1 else figures.minutes
    times_s = [each.start_s for each in minutes]

    def per_s(quantity: str) -> list[float | None]:
        return [each.amounts.get(quantity, 0.0) / BIN_S for each in minutes]

    def chart(caption: str, unit: str, *lines: Line) -> Chart:
        return Chart(caption, unit, times_s, lines, stepped=True)

    methods = [(each.name, each.method, each.cost) for each in steps]
    remarks = [(each,) for each in render.remarks(figures)]
    page.write(
        page.Report(
            title="What runs here: energy, carbon, and what could be saved",
            headline=render.headline(figures),
            about=f"Read only. Electricity: {figures.electricity or 'not given'}.",
            parts=[
                Table("GPUs", render.GPU_COLUMNS, list(render.gpu_rows(figures))),
                Table("What drew it", render.WORKLOAD_COLUMNS, list(render.workload_rows(figures))),
                Table("Servers", render.SERVER_COLUMNS, list(render.server_rows(figures))),
                Table(
                    "What each step would save",
                    render.STEP_COLUMNS,
                    list(render.step_rows(steps, figures)),
                ),
                Table("Methods", ("step", "method", "cost"), methods),
                chart(
                    "Power of all GPUs",
                    "W",
                    Line("all", per_s("energy_j")),
                    Line("while nothing was computed", per_s("idle_j")),
                ),
                chart("Emissions", "gCO2e/s", Line("all", per_s("carbon_gco2e"))),
                chart("Tokens of answers", "1/s", Line("tokens", per_s("answer_tokens"))),
                Table("Remarks", ("",), remarks),
            ],
        ),
        path,
    )
