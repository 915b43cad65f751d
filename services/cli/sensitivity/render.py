"""Sensitivities as tables, text and JSON."""

from typing import Any

from rich.table import Table

from services.cli.console.output import table
from services.cli.console.quantities import seconds
from services.gpuagent.profiling.sensitivity.study import Study


def kinds(study: Study) -> Table:
    """Return a table of operator types, those that take longest first."""
    rows = table("", "operator", ">count", ">time", ">share", ">at half clock", ">score")
    for kind in study.kinds():
        rows.add_row(
            kind.type,
            str(kind.count),
            seconds(kind.cost.latency_s),
            f"{kind.share:.1%}",
            f"x {kind.cost.half_clock_s / (kind.cost.latency_s or 1.0):.2f}"
            if kind.cost.latency_s
            else "-",
            f"{kind.cost.score:.2f}" if kind.cost.latency_s else "-",
        )
    return rows


def summary(study: Study) -> str:
    """Return the figures of the model as a whole."""
    cost, graph = study.cost, study.graph
    return (
        f"{graph.name} on {study.device} ({study.method}), batch {graph.batch_size}: "
        f"{seconds(cost.latency_s)}, {seconds(cost.half_clock_s)} at half the clock; score "
        f"{cost.score:.2f} of 2; {study.insensitive_share:.0%} of the kernels are below 1"
    )


def document(study: Study) -> dict[str, Any]:
    """Return the study as a JSON document."""
    return {
        "model": study.graph.name,
        "device": study.device,
        "method": study.method,
        "batch_size": study.graph.batch_size,
        "latency_s": study.cost.latency_s,
        "half_clock_s": study.cost.half_clock_s,
        "score": study.cost.score,
        "clock_sensitivity": study.cost.clock_sensitivity,
        "insensitive_share": study.insensitive_share,
        "operators": [
            {
                "type": kind.type,
                "count": kind.count,
                "latency_s": kind.cost.latency_s,
                "share": kind.share,
                "score": kind.cost.score,
            }
            for kind in study.kinds()
        ],
    }
