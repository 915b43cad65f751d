"""InfAdapter (EuroMLSys'23): the optimum at every load, and two days of a real load.

python -m benchmarks.infadapter [--json FILE] [--plots [DIR]]
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _loads as loads
from benchmarks.harness import Figures, Report, main
from benchmarks.infadapter import optimum, plots, policies
from benchmarks.infadapter.policies import Policy, margin, ours
from benchmarks.infadapter.replay import outlooks, replay, summary
from benchmarks.infadapter.setting import RESOURCE_WEIGHTS, Setting, setting

SINGLES = ("18", "50", "152")
"""The networks that the paper gives to its autoscaler."""

DRAWN_WEIGHT = 0.05
DRAWN = ("infadapter", "switching+", "vpa 18", "vpa 50", "vpa 152")


def measure() -> Report:
    """Prove the optima, then replay the load under every policy and weight."""
    known = setting()
    exact = optimum.optimality(known)
    load_rps = loads.twitter_seconds()
    ahead = outlooks(load_rps)
    courses = {
        (weight, name): replay(known, policy, load_rps, ahead, weight)
        for weight in RESOURCE_WEIGHTS
        for name, policy in _policies(known, weight).items()
    }
    rows = [
        {"alpha": weight, "policy": name} | summary(known, course)
        for (weight, name), course in courses.items()
    ]

    def draw(folder: Path) -> None:
        drawn = {name: courses[DRAWN_WEIGHT, name] for name in DRAWN}
        shown = plots.Replay(known, load_rps, ahead, drawn)
        for number, title, start in (
            (5, "A spike", plots.bursty(load_rps)),
            (8, "A steady load", plots.steady(load_rps)),
        ):
            plots.sample(folder / f"infadapter_fig{number}.png", title, start, shown)
        plots.bars(folder / "infadapter_fig7.png", rows)

    optima = optimum.known_optima(known)
    return Report(_tables(exact, optima, rows), _document(exact, optima, rows), draw)


def _policies(known: Setting, weight: float) -> dict[str, Policy]:
    planner = {"planner": policies.by_strategy(known, weight, ours)}
    return (planner if weight == DRAWN_WEIGHT else {}) | {
        "infadapter": policies.infadapter(known, weight, ours),
        "infadapter (margin)": policies.infadapter(known, weight, margin),
        "switching+": policies.model_switching(known, weight, ours),
        "switching+ (margin)": policies.model_switching(known, weight, margin),
        **{f"only {name}": policies.only(known, weight, name) for name in SINGLES},
        **{f"vpa {name}": policies.autoscaled(known, name) for name in SINGLES},
    }


def _tables(
    exact: Sequence[dict[str, Any]],
    optima: Sequence[dict[str, Any]],
    rows: Sequence[dict[str, Any]],
) -> list[Figures]:
    return [
        Figures(
            "Eq. 1 on 20 cores at every whole load up to capacity, ResNet-152 on all cores before",
            exact,
            "below optimum: against all choices of sizes in the same run; the shipped solver: 106, "
            "137 and 69 of 380, and no answer above capacity",
        ),
        Figures("Optima at alpha 0.05", optima),
        Figures(
            "Twitter, days 0-1, a decision every 30 s",
            rows,
            "provided for: our upper bound, or (margin) the last minute's busiest second x 1.1;"
            " above capacity: of the network they were sent to; late, p99: a fluid model",
        ),
    ]


def _document(
    exact: Sequence[dict[str, Any]],
    optima: Sequence[dict[str, Any]],
    rows: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    document: dict[str, Any] = {str(row["alpha"]): _without(row, "alpha") for row in exact}
    document["optima"] = list(optima)
    document["policies"] = {
        str(weight): {
            row["policy"]: _without(row, "alpha", "policy")
            for row in rows
            if row["alpha"] == weight
        }
        for weight in RESOURCE_WEIGHTS
    }
    return document


def _without(row: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


if __name__ == "__main__":
    main("infadapter", measure)
