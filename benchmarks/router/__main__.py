"""The router beside what else could stand in its place, in one run on one machine.

python -m benchmarks.router [--json FILE] [--baselines LIST] [--parts LIST] [--soak-s S] [--quick]
"""

import argparse
import os
import platform
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop
from rich.console import Console

from benchmarks.harness import WIDTH, options, publish
from benchmarks.router import environments
from benchmarks.router.generators import generator
from benchmarks.router.http import http_costs
from benchmarks.router.memory import memory
from benchmarks.router.overload import overload
from benchmarks.router.paths import PATHS
from benchmarks.router.report import Found, report
from benchmarks.router.soak import soak
from benchmarks.router.speed import Plan, secure_speeds, speeds

PARTS = ("speed", "tls", "memory", "http", "overload", "soak")
BASELINES = tuple(name for name in PATHS if name != "cinquefoil")
FULL, QUICK = Plan(rounds=5, seconds=2.5), Plan(rounds=1, seconds=1.0)
OVERLOAD_S, OVERLOAD_QUICK_S = 20.0, 6.0
HTTP, HTTP_QUICK = (5, 4000), (1, 320)
"""Rounds, and requests of each way in a round."""

SOAK_S, SOAK_QUICK_S = 600.0, 20.0


def main() -> None:
    """Run it."""
    arguments = _arguments()
    with TemporaryDirectory(prefix="bench-router-") as folder:
        found = uvloop.run(measure(arguments, Path(folder)))
    publish("router", report(found), arguments)


async def measure(arguments: argparse.Namespace, folder: Path) -> Found:
    """Run the requested parts, one after another."""
    say, quick = Console(stderr=True, width=WIDTH).print, arguments.quick
    name, generate = generator()
    found = Found(name, setting=_setting(arguments))
    if "speed" in arguments.parts:
        named = arguments.baselines
        absent = await environments.build(named or BASELINES) if named or not quick else {}
        say("speed", style="dim")
        wanted = [*(named or BASELINES), "cinquefoil"]
        plan = QUICK if quick else FULL
        found.speeds = await speeds(wanted, absent, plan, generate, _made(folder / "speed"))
    if "tls" in arguments.parts:
        say("speed with TLS on both sides", style="dim")
        plan = QUICK if quick else FULL
        found.secure = await secure_speeds(plan, generate, _made(folder / "tls"))
    if "memory" in arguments.parts:
        say("memory", style="dim")
        found.memory = await memory(_made(folder / "memory"))
    if "http" in arguments.parts:
        say("http", style="dim")
        rounds, requests = HTTP_QUICK if quick else HTTP
        found.http = await http_costs(_made(folder / "http"), rounds=rounds, requests=requests)
    if "overload" in arguments.parts:
        say("overload", style="dim")
        seconds = OVERLOAD_QUICK_S if quick else OVERLOAD_S
        found.overload = await overload(_made(folder / "overload"), seconds)
    if "soak" in arguments.parts:
        soak_s = arguments.soak_s or (SOAK_QUICK_S if quick else SOAK_S)
        say(f"soak, {soak_s:g} s", style="dim")
        found.soak = await soak(_made(folder / "soak"), soak_s)
    return found


def _arguments() -> argparse.Namespace:
    parser = options("router")
    parser.add_argument("--quick", action="store_true", help="few and short rounds; no installs")
    parser.add_argument("--soak-s", type=_soak_s, metavar="S", help=f"default: {SOAK_S:g} s")
    for name, known, default in (("baselines", BASELINES, None), ("parts", PARTS, PARTS)):
        parser.add_argument(
            f"--{name}",
            type=partial(_chosen, known=known),
            default=default,
            metavar="LIST",
            help=f"of {','.join(known)}; default: all",
        )
    return parser.parse_args()


def _chosen(text: str, known: Sequence[str]) -> Sequence[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := sorted(set(names) - set(known)):
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def _soak_s(text: str) -> float:
    if (seconds := float(text)) < SOAK_QUICK_S:
        raise argparse.ArgumentTypeError(f"at least {SOAK_QUICK_S:g} s, for a few plan changes")
    return seconds


def _setting(arguments: argparse.Namespace) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_average_before": os.getloadavg()[0],
        "quick": arguments.quick,
    }


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    main()
