"""A model's time by operator, and its sensitivity to the clock, as a picture."""

from pathlib import Path
from typing import Any, Final

from matplotlib import colormaps
from matplotlib.figure import Figure

from services.gpuagent.profiling.sensitivity.study import Study
from services.kit.operators.core.clock_sensitivity import INSENSITIVE, MAX_SCORE

_MOST_KINDS: Final = 12
_COLOURS: Final = colormaps["coolwarm"]


def draw(study: Study, file: Path) -> None:
    """Write a PNG file: shares of time by operator type, and scores along the network."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    shares, along = figure.subplots(1, 2, width_ratios=(2, 3))
    _shares(shares, study)
    _along(along, study)
    figure.suptitle(f"{study.graph.name} on {study.device} ({study.method})", fontsize=11)
    figure.savefig(file, dpi=120)


def _shares(axes: Any, study: Study) -> None:
    kinds = [kind for kind in study.kinds() if kind.cost.latency_s][:_MOST_KINDS]
    colours = [_COLOURS(kind.cost.score / MAX_SCORE) for kind in kinds]
    axes.barh([kind.type for kind in kinds], [kind.share * 100 for kind in kinds], color=colours)
    axes.invert_yaxis()
    axes.set_xlabel("share of time (%), coloured by score")


def _along(axes: Any, study: Study) -> None:
    """Draw each kernel: its width is its time, its height its score."""
    edges, scores = [0.0], []
    for cost in study.costs:
        if cost.latency_s:
            edges.append(edges[-1] + cost.latency_s * 1e3)
            scores.append(cost.score)
    axes.stairs(scores, edges, fill=True, color="tab:blue", alpha=0.6)
    axes.axhline(INSENSITIVE, color="black", lw=1, ls="--")
    axes.set_ylim(0, MAX_SCORE * 1.02)
    axes.set_xlim(0, edges[-1] or 1.0)
    axes.set_xlabel("time of a batch (ms)")
    axes.set_ylabel("score: 0 keeps its pace, 2 halves it")
