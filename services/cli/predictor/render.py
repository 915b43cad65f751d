"""What the predictor knows, as a table."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType

from cinquefoil.predictor.v1.predictor_pb2 import ModelStatistics, Source
from services.cli.console.quantities import percent
from services.cli.console.tables import table
from services.cli.console.variant_names import word


def render(models: Iterable[ModelStatistics]) -> RenderableType:
    """Return one row per model and source; a cache hit is "exact" or "semantic"."""
    rows = table(
        "Length predictions",
        *("model", ">known", ">observed", "source", ">predictions", ">mean ms", ">class right"),
    )
    for model in models:
        head = (model.model, str(model.cache_entries), str(model.observed))
        for each in model.sources:
            mean_ms = each.total_s / each.predictions * 1e3 if each.predictions else 0.0
            right = percent(each.right / each.judged) if each.judged else "-"
            source = word(Source.Name(each.source), "SOURCE_")
            rows.add_row(*head, source, str(each.predictions), f"{mean_ms:.2f}", right)
            head = ("", "", "")
        if not model.sources:
            rows.add_row(*head, "-", "0", "-", "-")
    return rows
