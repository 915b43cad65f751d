"""One service in several regions: recorded grids in virtual time, or suites on one machine.

python -m benchmarks.places [--folder DATA] [--year Y] [--days D,D] [--sets S,S] [--json FILE]
python -m benchmarks.places --part waiting [--folder DATA] [--year Y] [--days D,D] [--json FILE]
python -m benchmarks.places --part live [--cases CASE,CASE] [--json FILE]
python -m benchmarks.places --part forward [--quick] [--json FILE]
"""

import argparse
import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks._data import DATA
from benchmarks.harness import Figures, Report, Skipped, options, publish
from benchmarks.places import forward, live, recorded, waiting

CASES: Final = ("residency", "grids", "cut", "event", "drain")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _recorded(given: argparse.Namespace) -> Report:
    folders = tuple(given.folder or [DATA])
    names = [n for n in recorded.SETS if any(n.startswith(s) for s in given.sets.split(","))]
    jobs = [
        recorded.Job(name, folders, given.year, given.days, late_s)
        for name in names
        for late_s in given.late
    ]
    if given.quick:
        jobs = [replace(jobs[0], days=given.days[:1], late_s=15, hours=2)]
    return recorded.measure(jobs)


def _waiting(given: argparse.Namespace) -> Report:
    names = [n for n in recorded.SETS if any(n.startswith(s) for s in given.sets.split(","))]
    folders = tuple(given.folder or [DATA])
    jobs = [recorded.Job(name, folders, given.year, given.days, 0) for name in names]
    return waiting.measure(jobs[:1] if given.quick else jobs)


def _live(given: argparse.Namespace) -> Report:
    rows, account = asyncio.run(live.run(tuple(given.cases.split(","))))
    shown = [{key: row[key] for key in row if key not in {"losses", "late"}} for row in rows]
    about = f"{live.RATE_RPS:g} req/s at home, objective {live.OBJECTIVE_S * 1e3:g} ms"
    note = "worst_load: most work of any region, of its capacity; recovered_s: see docs"
    return Report(
        [Figures(f"Three suites, {about}", shown, note)], {"failures": rows, "account": account}
    )


def _forward(given: argparse.Namespace) -> Report:
    rows = forward.measure(2 if given.quick else 40)
    note = "cpu_us: processor time of a request in client, routers and worker together"
    return Report([Figures("Cost of forwarding", rows, note)], {"forward": rows})


PARTS: Final = {"recorded": _recorded, "live": _live, "forward": _forward, "waiting": _waiting}


if __name__ == "__main__":
    parser = options("places")
    parser.add_argument("--part", choices=PARTS, default="recorded")
    parser.add_argument("--folder", type=Path, action="append", help="folder of data sets")
    parser.add_argument("--year", type=int, default=2022)
    parser.add_argument("--days", type=_numbers, default=recorded.DAYS, help="of the year, from 0")
    parser.add_argument("--late", type=_numbers, default=recorded.LATE_S, help="ages of news, s")
    parser.add_argument("--sets", default=",".join(recorded.SETS), help="names, with commas")
    parser.add_argument("--quick", action="store_true", help="one set, one day's two hours")
    parser.add_argument("--cases", default=",".join(CASES), help="of the live part, with commas")
    arguments = parser.parse_args()
    try:
        found = PARTS[arguments.part](arguments)
        publish("places", found, arguments)
    except Skipped as reason:
        print(f"places: skipped, {reason}")
