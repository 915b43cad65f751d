"""Generative serving: how well lengths are predicted, and how the router uses the predictions.

python -m benchmarks.generative [--part PART] [--json FILE] [--plots [DIR]] [--quick]
"""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.generative import cache, live, predictor, scheduling
from benchmarks.harness import Report, Skipped, options, publish

PARTS: Mapping[str, Callable[..., Report]] = {
    "predictor": predictor.measure,
    "cache": cache.measure,
    "scheduling": scheduling.measure,
    "live": live.measure,
}
"""By name; each takes `quick`."""


def main() -> None:
    """Run one part, or all."""
    parser = options("generative")
    parser.add_argument("--part", choices=sorted(PARTS), help="run this part only")
    parser.add_argument("--quick", action="store_true", help="run a small part of each")
    arguments = parser.parse_args()
    wanted = [arguments.part] if arguments.part else list(PARTS)
    reports = []
    for name in wanted:
        try:
            reports.append(PARTS[name](quick=arguments.quick))
        except Skipped as reason:
            print(f"generative, {name}: skipped, {reason}")
    found: dict[str, Any] = {}
    for report in reports:
        found |= report.document or {}
    tables = [table for report in reports for table in report.tables]
    publish("generative", Report(tables, found), arguments)


if __name__ == "__main__":
    main()
