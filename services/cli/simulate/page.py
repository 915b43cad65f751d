"""A simulation as a page to explore."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

from services.cli.console.quantities import percent
from services.cli.simulate.render import rows
from services.console import page
from services.console.page import Chart, Line, Table
from services.kit.plurals import counted
from services.simulator.report.figures import ModelFigures
from services.simulator.report.report import Report, Result


def write(report: Report, path: Path) -> None:
    """Write the report as one HTML file."""
    length = timedelta(seconds=report.duration_s)
    detail = (
        "every request simulated one by one"
        if report.detail == "full"
        else "samples simulated request by request, which represent the rest; energy is uncertain "
        "by so much with 95 % confidence"
    )
    page.write(
        page.Report(
            title=f"{report.name}: a simulation",
            headline=headline(report),
            about=f"{length} of virtual time from {report.start:%Y-%m-%d %H:%M} UTC, seed "
            f"{report.seed}, {detail}. All policies got the same requests at the same moments.",
            parts=[
                Table(
                    "Figures",
                    ("quantity", *(f">{name}" for name in report.results)),
                    list(rows(report)),
                ),
                *_timeline(report),
                *(chart for found in report.results.items() for chart in _shares(report, *found)),
                *(_plans(*found) for found in report.results.items()),
            ],
        ),
        path,
    )


def headline(report: Report) -> str:
    """Return the policies' savings against the first, and the objectives met, in words."""
    first, *others = (result.figures for result in report.results.values())
    words = [
        f"{one.policy} emitted {percent(abs(saved))} {'less' if saved >= 0 else 'more'} carbon "
        f"than {first.policy} for the same requests; {_met(one.models.values())}."
        for one in others
        if first.carbon_gco2e > 0
        for saved in (1 - one.carbon_gco2e / first.carbon_gco2e,)
    ]
    return " ".join([*words, f"With {first.policy}, {_met(first.models.values())}."])


def _met(models: Iterable[ModelFigures]) -> str:
    missed = [one for one in models if not one.met]
    return f"{len(missed)} objectives were missed" if missed else "every objective was met"


def _timeline(report: Report) -> Iterator[Chart]:
    """Yield charts with a line per zone, model or policy."""
    results = report.results
    series = {name: result.series for name, result in results.items()}
    grid = next(iter(series.values()))
    times_s = [
        report.start.timestamp() + grid.bin_s * number for number in range(len(grid.power_w))
    ]

    def chart(caption: str, unit: str, lines: Sequence[Line], *, from_zero: bool = True) -> Chart:
        return Chart(caption, unit, times_s, lines, stepped=True, from_zero=from_zero)

    yield chart(
        "Carbon intensity of the grid",
        "gCO₂e/kWh",
        [Line(zone, values) for zone, values in grid.intensity_gco2e_per_kwh.items()],
    )
    yield chart("Load", "req/s", [Line(model, values) for model, values in grid.load_rps.items()])
    yield chart(
        "Emissions of all GPUs, PUE included",
        "gCO₂e/h",
        [Line(name, one.carbon_gco2e_per_h) for name, one in series.items()],
    )
    for model, slo in next(iter(results.values())).figures.models.items():
        yield chart(
            f"Stated accuracy of {model}'s answers",
            "accuracy",
            [Line(name, one.accuracy[model]) for name, one in series.items()],
            from_zero=False,
        )
        objective = Line("objective", [slo.slo_latency_s * 1e3] * len(times_s), dashed=True)
        found = [Line(name, _ms(one.latency_s[model])) for name, one in series.items()]
        yield chart(f"Latency of {model}, p{slo.slo_percentile:g}", "ms", [*found, objective])


def _shares(report: Report, policy: str, result: Result) -> Iterator[Chart]:
    """Yield charts of each model's variants under a policy, the cheapest at the bottom."""
    start_s, series = report.start.timestamp(), result.series
    for model, variants in report.variants.items():
        shares = series.shares[model]
        yield Chart(
            f"{policy}: what served {model}; {result.figures.reconfigurations} reconfigurations",
            "% of the answers",
            [start_s + series.bin_s * number for number in range(len(series.power_w))],
            [
                Line(name, [each * 100 for each in shares[name]])
                for name in variants
                if name in shares
            ],
            stacked=True,
            marks_s=[start_s + plan.decided_s for plan in result.plans[1:] if plan.steps],
        )


def _plans(policy: str, result: Result) -> Table:
    return Table(
        f"{policy}: {counted(len(result.plans), 'plan')}",
        (">plan", ">hour", "why", "segments", ">steps"),
        [
            (
                str(plan.version),
                f"{plan.decided_s / 3600:.2f}",
                plan.reason,
                ", ".join(f"{count} x {kind}" for kind, count in plan.slices.items()),
                str(plan.steps),
            )
            for plan in result.plans
        ],
        folded=True,
    )


def _ms(seconds: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else value * 1e3 for value in seconds]
