"""Requests that can wait: what each way to run them emits, and what the batch service bears.

python -m benchmarks.waiting [--quick] [--part release|lines] [--lines N] [--kills N] [--json FILE]

- release: energy and emissions by grid, share and window (`benchmarks.waiting.release`)
- lines: a file answered by a batch service; the same with kills (`benchmarks.waiting.lines`)
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

from benchmarks.harness import Figures, Report, options, publish
from benchmarks.waiting import lines, release

_NAME: Final = "waiting"
_QUICK_LINES: Final = 2_000


def main() -> None:
    """Run the parts on request, and publish them in one document."""
    parser = options(_NAME)
    parser.add_argument("--quick", action="store_true", help="run a small part only")
    parser.add_argument("--part", choices=("release", "lines"), help="default: both")
    parser.add_argument("--lines", type=int, default=100_000, help="lines of the file")
    parser.add_argument("--kills", type=int, default=10, help="kills of the second run")
    arguments = parser.parse_args()
    tables, document = list[Figures](), dict[str, Any]()
    if arguments.part != "lines":
        found = release.measure(quick=arguments.quick)
        tables.extend(found.tables)
        document.update(found.document or {})
    if arguments.part != "release":
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
    yield lines.measured(count, 1 if arguments.quick else arguments.kills)


if __name__ == "__main__":
    main()
