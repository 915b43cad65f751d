"""Figures 6 to 10 of the paper, as they come out here."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from benchmarks.carbondis.setting import SETS
from benchmarks.carbondis.study import Outcome

mpl.use("Agg")
Found = Mapping[str, Mapping[str, Outcome]]
"""Outcomes by set and policy, the bound last."""


def draw(folder: Path, found: Found, sweep: Mapping[float, Outcome]) -> None:
    """Draw all of them."""
    _tails(folder / "carbondis_fig6.png", found)
    _distribution(folder / "carbondis_fig7.png", found["set1"])
    _carbon(folder / "carbondis_fig8.png", found)
    _high_use(folder / "carbondis_fig9.png", found)
    _thresholds(folder / "carbondis_fig10.png", sweep)


def _tails(file: Path, found: Found) -> None:
    figure, axes = plt.subplots(2, 5, figsize=(14, 6))
    for row, jobs in zip(axes, SETS, strict=True):
        for job, axis in enumerate(row):
            names = list(found[jobs.name])[:-1]
            axis.bar(names, [found[jobs.name][name].tails_ms[job] for name in names])
            slo_ms = jobs.jobs[job].slo_ms
            axis.axhline(slo_ms, color="black", linestyle="--")
            axis.set(title=f"{jobs.name}, job {job + 1}", ylim=(0, 2 * slo_ms))
            axis.tick_params(axis="x", rotation=90)
    axes[0][0].set_ylabel("95th percentile, ms")
    _save(figure, file)


def _distribution(file: Path, found: Mapping[str, Outcome]) -> None:
    figure, axis = plt.subplots(figsize=(7, 4))
    for name in list(found)[:-1]:
        axis.plot(found[name].first_job_ms, range(101), label=name)
    axis.axvline(SETS[0].jobs[0].slo_ms, color="black", linestyle="--")
    axis.axhline(95, color="black", linestyle=":")
    axis.set(xlabel="latency of job 1, set 1, ms", ylabel="requests, %", xlim=(0, 800))
    axis.legend()
    _save(figure, file)


def _carbon(file: Path, found: Found) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(12, 4))
    for axis, (name, outcomes) in zip(axes, found.items(), strict=True):
        policies = list(outcomes)[:-1]
        idle = [outcomes[each].idle_gco2e for each in policies]
        active = [outcomes[each].active_gco2e for each in policies]
        axis.bar(policies, active, label="active")
        axis.bar(policies, idle, bottom=active, label="idle")
        axis.axhline(outcomes["bound"].carbon_gco2e, color="black", linestyle="--", label="bound")
        axis.set(title=name, ylabel="emissions, gCO2e")
        axis.tick_params(axis="x", rotation=30)
        axis.legend()
    _save(figure, file)


def _high_use(file: Path, found: Found) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(12, 4))
    policies = ("dybatch", "carbondis", "carbon-aware")
    places = np.arange(5)
    for axis, (name, outcomes) in zip(axes, found.items(), strict=True):
        for number, policy in enumerate(policies):
            axis.bar(places + 0.25 * number, outcomes[policy].high_use, 0.25, label=policy)
        axis.set(title=name, xlabel="job", ylabel="requests on the high end")
        axis.set_xticks(places + 0.25, [str(job + 1) for job in places])
        axis.legend()
    _save(figure, file)


def _thresholds(file: Path, sweep: Mapping[float, Outcome]) -> None:
    figure, (use, carbon, late) = plt.subplots(1, 3, figsize=(14, 4))
    found = list(sweep.values())
    for job in range(5):
        use.plot(list(sweep), [each.high_use[job] for each in found], label=f"job {job + 1}")
        late.plot(list(sweep), [each.late[job] for each in found], label=f"job {job + 1}")
    for part in ("active_gco2e", "idle_gco2e", "carbon_gco2e"):
        carbon.plot(list(sweep), [getattr(each, part) for each in found], label=part)
    use.set(xlabel="CIT", ylabel="requests on the high end")
    carbon.set(xlabel="CIT", ylabel="emissions, gCO2e", ylim=(0, None))
    late.set(xlabel="CIT", ylabel="requests over their constraint")
    for axis in (use, carbon, late):
        axis.legend()
    _save(figure, file)


def _save(figure: Figure, file: Path) -> None:
    figure.tight_layout()
    figure.savefig(file)
    plt.close(figure)
