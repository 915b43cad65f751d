"""Fate of requests while services are killed, stopped, restarted and cut off.

    python -m benchmarks.chaos [--requests N] [--seed S] [--tls] [--rotate S] [--json FILE]
    python -m benchmarks.chaos --faults [FAULT/SERVICE ...] [--json FILE]
    python -m benchmarks.chaos --seeds FIRST LAST [--json FILE]
    python -m benchmarks.chaos --upgrade REF [--json FILE]

The first kills workers, agent and planner at random (`kills`); the second measures one fault after
the other (`faults`), the third draws three at a time by seeds (`seeds`; out/chaos/seeds.jsonl keeps
what was run), the fourth replaces the services of another version by this one's, and back
(`upgrade`).
"""

import argparse
import asyncio
import math
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.chaos import faults, kills, seeds, upgrade
from benchmarks.chaos.check import wrong
from benchmarks.harness import Report, options, publish

DONE = Path("out/chaos/seeds.jsonl")


def _arguments() -> argparse.Namespace:
    parser = options("chaos")
    default = f"default: {kills.REQUESTS}"
    parser.add_argument("--requests", type=int, default=kills.REQUESTS, help=default)
    parser.add_argument("--seed", type=int, default=1, help="of the kills")
    parser.add_argument("--tls", action="store_true", help="mutual TLS among all")
    parser.add_argument(
        "--rotate", type=float, default=math.inf, metavar="S", help="renew certificates every S s"
    )
    known = ", ".join(f"{each.name}/{each.service}" for each in faults.FAULTS)
    parser.add_argument(
        "--faults", nargs="*", metavar="FAULT/SERVICE", help=f"one after the other: {known}"
    )
    parser.add_argument("--upgrade", metavar="REF", help="from this version's code, and back")
    parser.add_argument(
        "--seeds", nargs=2, type=int, metavar=("FIRST", "LAST"), help="three at a time, at random"
    )
    return parser.parse_args()


def _measured(arguments: argparse.Namespace, folder: Path) -> Report:
    if arguments.faults is not None:
        return faults.faults_table(folder, arguments.faults)
    if arguments.seeds:
        first, last = arguments.seeds
        return seeds.seeds_table(folder, range(first, last + 1), DONE)
    if arguments.upgrade:
        return upgrade.upgrade_table(folder, arguments.upgrade)
    tls, rotate_s = arguments.tls, arguments.rotate
    kill = kills.run(folder, arguments.requests, arguments.seed, tls=tls, rotate_s=rotate_s)
    return asyncio.run(kill)


def main() -> None:
    """Run it; the exit status is 1 if anything was found that must not be."""
    arguments = _arguments()
    with TemporaryDirectory(prefix="bench-chaos-") as folder:
        found = _measured(arguments, Path(folder))
    publish("chaos", found, arguments)
    if names := sorted({name for row in found.tables[0].rows for name in wrong(row)}):
        sys.exit(f"not as it must be: {', '.join(names)}")


if __name__ == "__main__":
    main()
