"""The paper's Fig. 7, 8, 13 and 14a, drawn from this run."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from benchmarks.harness import Row
from benchmarks.muserve.replay import Course

mpl.use("Agg")

AXES = {"slo_scale": "SLO scale", "rate_rps": "rate, req/s", "devices": "devices"}
BIN_S = 10.0


def sweeps(file: Path, by_axis: Mapping[str, Sequence[Row]], figure: str, label: str) -> None:
    """Draw one figure of every policy along each axis, one beside the other."""
    canvas, panels = plt.subplots(1, len(by_axis), figsize=(5 * len(by_axis), 4), squeeze=False)
    for panel, (axis, rows) in zip(panels[0], by_axis.items(), strict=True):
        for policy in dict.fromkeys(row["policy"] for row in rows):
            mine = [row for row in rows if row["policy"] == policy]
            panel.plot([r[axis] for r in mine], [r[figure] for r in mine], ".-", label=policy)
        if figure.startswith("p99"):
            panel.axhline(1.0, color="grey", linestyle="--")
        panel.set(xlabel=AXES[axis], ylabel=label, ylim=(0, None))
    panels[0][0].legend(fontsize=8)
    _save(canvas, file)


def follow(file: Path, courses: Mapping[str, Course], length_s: float) -> None:
    """Draw requests per second and the clocks of all devices over time (Fig. 13)."""
    canvas, panels = plt.subplots(1 + len(courses), 1, figsize=(9, 3 * (1 + len(courses))))
    first = next(iter(courses.values()))
    came_s = [answer.at_s - answer.latency_s for answer in first.answers]
    counts, edges = np.histogram(came_s, np.arange(0, length_s + BIN_S, BIN_S))
    panels[0].step(edges[:-1], counts / BIN_S, where="post")
    panels[0].set(ylabel="rate, req/s")
    for panel, (name, course) in zip(panels[1:], courses.items(), strict=True):
        for device, clocks in course.clocks.items():
            if clocks:
                at_s, mhz = zip(*clocks, (length_s, clocks[-1][1]), strict=True)
                panel.step(at_s, mhz, where="post", label=device)
        panel.set(ylabel=f"{name}: clock, MHz", ylim=(0, None), xlim=(0, length_s))
    panels[-1].set(xlabel="time, s")
    _save(canvas, file)


def insensitivity(file: Path, rows: Iterable[Row]) -> None:
    """Draw the saving over the share of insensitive work (Fig. 14a)."""
    canvas, panels = plt.subplots(1, 2, figsize=(10, 4))
    kept = list(rows)
    for panel, figure in zip(panels, ("active_saving", "serving_saving"), strict=True):
        for policy in dict.fromkeys(row["policy"] for row in kept):
            mine = [row for row in kept if row["policy"] == policy]
            shares = [100 * row["insensitive"] for row in mine]
            panel.plot(shares, [row[figure] for row in mine], ".-", label=policy)
        panel.set(xlabel="insensitive work, %", ylabel=figure.replace("_", " "), ylim=(0.9, None))
    panels[0].legend(fontsize=8)
    _save(canvas, file)


def _save(canvas: Figure, file: Path) -> None:
    canvas.tight_layout()
    canvas.savefig(file)
    plt.close(canvas)
