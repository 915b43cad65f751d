"""Coverage-guided search for histories that break an invariant, and the shortest that does."""

from __future__ import annotations

import argparse
import json
import random
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from services.kit.telemetry import logs
from tests.simulation.histories import WRITTEN, History, changed, drawn
from tests.simulation.network import net
from tests.simulation.play import Outcome, play

_FRESH: Final = 0.3
"""Share of histories that are drawn, rather than changed from one with a new state."""


def main(arguments: Sequence[str]) -> int:
    """Run what the command line says; return 1 where an invariant broke."""
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__)
    parser.add_argument("--hours", type=float, default=0.1, help="virtual hours to search")
    parser.add_argument("--cpu-s", type=float, default=0.0, help="stop after so much CPU, s")
    parser.add_argument("--length", type=float, default=40.0, help="length of the faults, s")
    parser.add_argument("--seed", type=int, default=1, help="first seed")
    parser.add_argument("--play", default="", help="play seeds, written histories, or files")
    parser.add_argument("--corpus", type=Path, help="histories to go on from, and to save")
    parser.add_argument("--first", action="store_true", help="stop at the first that breaks")
    parser.add_argument("--log", default="critical", help="lowest level of logs to show")
    parser.add_argument("--events", type=Path, help="file for every message, to compare two runs")
    options = parser.parse_args(arguments)
    if options.events is not None:
        net.log = options.events.open("w")
    logs.configure("simulation", level=options.log)
    if options.play:
        return max(_one(each, options.length) for each in options.play.split(","))
    return Search(options).run()


def _one(name: str, length_s: float) -> int:
    if name in WRITTEN:
        history = WRITTEN[name]
    elif name.isdigit():
        history = drawn(int(name), length_s)
    else:
        history = History.of(json.loads(Path(name).read_text()))
    outcome = play(history)
    _say(name, outcome)
    return int(bool(outcome.broken))


class Search:
    """A search, which goes on where its corpus ended."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._seen: dict[str, None] = {}
        self._corpus: list[History] = []
        self._seed = options.seed
        if options.corpus is not None and options.corpus.exists():
            saved = json.loads(options.corpus.read_text())
            self._seen = dict.fromkeys(saved["states"])
            self._corpus = [History.of(each) for each in saved["histories"]]
            self._seed = saved["seed"]

    def run(self) -> int:
        """Search; return 1 where an invariant broke."""
        virtual_s = cpu_s = 0.0
        count = failures = 0
        options = self._options
        while virtual_s < options.hours * 3600 and (not options.cpu_s or cpu_s < options.cpu_s):
            history, outcome = self._next()
            count, virtual_s, cpu_s = (
                count + 1,
                virtual_s + outcome.virtual_s,
                cpu_s + outcome.cpu_s,
            )
            new = [each for each in outcome.states if each not in self._seen]
            self._seen.update(dict.fromkeys(new))
            if outcome.broken:
                failures += 1
                self._report(history, outcome)
                if options.first:
                    break
            elif new:
                self._corpus.append(history)
            self._save()
        print(  # noqa: T201
            f"{count} histories, {virtual_s:.0f} virtual s in {cpu_s:.1f} s of CPU"
            f" (x{virtual_s / max(cpu_s, 1e-9):.0f}), {len(self._seen)} states,"
            f" {failures} broke an invariant",
            flush=True,
        )
        return int(failures > 0)

    def _next(self) -> tuple[History, Outcome]:
        seed, self._seed = self._seed, self._seed + 1
        draw = random.Random(seed)
        if self._corpus and draw.random() > _FRESH:
            recent = self._corpus[-50:]
            history = changed(draw.choice(recent), seed, self._options.length)
        else:
            history = drawn(seed, self._options.length)
        return history, play(history)

    def _report(self, history: History, outcome: Outcome) -> None:
        found = shortened(history, outcome)
        folder = self._options.corpus.parent if self._options.corpus else Path("out/simulation")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{history.seed}.json"
        path.write_text(json.dumps(found.shown(), indent=1))
        _say(f"seed {history.seed} at commit {commit()}", outcome)
        print(f"  shortest history, {len(found.faults)} of {len(history.faults)} faults:")  # noqa: T201
        for each in found.faults:
            print(f"    {each}")  # noqa: T201
        print(f"  again: python -m tests.simulation --play {path}", flush=True)  # noqa: T201

    def _save(self) -> None:
        path: Path | None = self._options.corpus
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            saved = {
                "seed": self._seed,
                "states": list(self._seen),
                "histories": [each.shown() for each in self._corpus[-200:]],
            }
            path.write_text(json.dumps(saved))


def shortened(history: History, outcome: Outcome, tries: int = 24) -> History:
    """Return a history with fewer faults that breaks the same invariant.

    Halves are left out first, then quarters, down to single faults.
    """
    kind, size = _kind(outcome), max(len(history.faults) // 2, 1)
    while tries > 0:
        start = 0
        while start < len(history.faults) and tries > 0:
            rest = history.faults[:start] + history.faults[start + size :]
            tries -= 1
            less = replace(history, faults=rest)
            if _kind(play(less)) == kind:
                history = less
            else:
                start += size
        if size == 1:
            break
        size //= 2
    return history


def _kind(outcome: Outcome) -> str:
    """Return the first words of the first broken invariant."""
    return " ".join(outcome.broken[0].split()[:4]) if outcome.broken else ""


def _say(name: str, outcome: Outcome) -> None:
    for each in outcome.broken:
        print(f"{name}: BROKEN: {each}")  # noqa: T201
    print(  # noqa: T201
        f"{name}: digest {outcome.digest}, {outcome.virtual_s:.0f} virtual s in"
        f" {outcome.cpu_s:.2f} s of CPU (x{outcome.virtual_s / max(outcome.cpu_s, 1e-9):.0f}),"
        f" {outcome.messages} messages, {len(outcome.states)} states, settled after"
        f" {outcome.settled_s:.1f} s, {outcome.heard}, longest gaps {outcome.gap_s} s",
        flush=True,
    )


def commit() -> str:
    """Return the commit that is checked out, and whether something differs from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
