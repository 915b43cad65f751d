"""The clock as it follows the load: mu-Serve's Fig. 13."""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from benchmarks.miad.setting import SLO_S
from benchmarks.miad.virtual import Course, Rate

mpl.use("Agg")
WINDOW_S = 0.5


def follow(file: Path, course: Course, rate_rps: Rate, length_s: float) -> None:
    """Draw load, clock and latency over time, one above the other."""
    figure, (load, clock, latency) = plt.subplots(3, 1, figsize=(8, 7), sharex=True)
    times = np.arange(0, length_s, WINDOW_S)
    load.step(times, [rate_rps(at_s) for at_s in times], where="post")
    load.set(ylabel="load, req/s", ylim=(0, None))
    at_s, mhz = zip(*course.clocks, (length_s, course.clocks[-1][1]), strict=True)
    clock.step(at_s, mhz, where="post")
    clock.set(ylabel="SM clock, MHz", ylim=(0, None))
    windows = [course.latencies_s(at, at + WINDOW_S) for at in times]
    p99_s = [np.percentile(found, 99) if len(found) else np.nan for found in windows]
    latency.plot(times, p99_s, ".", markersize=4)
    latency.axhline(SLO_S, color="grey", linestyle="--")
    latency.set(ylabel="p99 of half a second, s", xlabel="time, s", ylim=(0, None))
    figure.tight_layout()
    figure.savefig(file)
    plt.close(figure)
