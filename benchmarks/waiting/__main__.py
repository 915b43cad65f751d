"""Requests that can wait: what each way to run them emits, and what the batch service bears.

python -m benchmarks.waiting [--quick] [--part NAME] [--lines N] [--kills N] [--seed N]
    [--json FILE]

- release: energy and emissions by grid, share and window (`benchmarks.waiting.release`)
- interactive: objectives of conversations beside waiting work (`benchmarks.waiting.interactive`)
- live: the same on two replicas of llama.cpp (`benchmarks.waiting.live`; only by --part)
- lines: a file answered by a batch service; the same with kills (`benchmarks.waiting.lines`)
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

from benchmarks.harness import Figures, Report, options, publish
from benchmarks.waiting import interactive, lines, live, release

_NAME: Final = "waiting"
_PARTS: Final = ("release", "interactive", "lines")
_LIVE: Final = "live"
_QUICK_LINES: Final = 2_000


def main() -> None:
    """Run the parts on request, and publish them in one document."""
    parser = options(_NAME)
    parser.add_argument("--quick", action="store_true", help="run a small part only")
    parser.add_argument("--part", choices=(*_PARTS, _LIVE), help="default: all but live")
    parser.add_argument("--lines", type=int, default=100_000, help="lines of the file")
    parser.add_argument("--kills", type=int, default=10, help="kills of the second run")
    parser.add_argument("--seed", type=int, default=1, help="first seed of conversations and kills")
    arguments = parser.parse_args()
    tables, document = list[Figures](), dict[str, Any]()
    parts = (arguments.part,) if arguments.part else _PARTS
    if "release" in parts:
        found = release.measure(quick=arguments.quick)
        tables.extend(found.tables)
        document.update(found.document or {})
    if "interactive" in parts:
        loads = interactive.LOADS[1:2] if arguments.quick else interactive.LOADS
        seeds = 1 if arguments.quick else interactive.SEEDS
        beside = interactive.measure(loads, seeds, arguments.seed)
        document["interactive"] = beside
        tables.append(Figures("interactive conversations beside waiting work, one H100", beside))
    if _LIVE in parts:
        rows = document["live"] = live.measure(quick=arguments.quick)
        tables.append(Figures("texts on two replicas of llama.cpp, alone and beside others", rows))
    if "lines" in parts:
        outcomes = list(_outcomes(arguments))
        rows = [each._asdict() for each in outcomes]
        note = "workers answer at once; processor time of the batch service alone"
        tables.append(Figures("a file, and the same with kills of the batch service", rows, note))
        calm, killed = outcomes
        document["throughput"] = {"lines_per_s": calm.lines_per_s, "rss_mib": calm.rss_mib}
        document["throughput"]["cpu_us_per_line"] = calm.cpu_us_per_line
        document["kills"] = {
            name: getattr(killed, name) for name in ("lines", "kills", "lost", "doubled")
        }
    publish(_NAME, Report(tables, document), arguments)


def _outcomes(arguments: argparse.Namespace) -> Iterator[lines.Outcome]:
    """Yield the figures of a file, and of the same with kills."""
    count = _QUICK_LINES if arguments.quick else arguments.lines
    yield lines.measured(count, 0)
    yield lines.measured(count, 1 if arguments.quick else arguments.kills, arguments.seed)


if __name__ == "__main__":
    main()
