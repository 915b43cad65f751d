"""The reference of metrics that the documentation's site shows."""

import runpy
from collections.abc import Callable
from typing import Any, Final

from tests.support.paths import ROOT

_PAGE = runpy.run_path(str(ROOT / ".ci/docs_metrics.py"))

OURS: Final[tuple[str, ...]] = _PAGE["OURS"]
series: Final[Callable[[str], set[str]]] = _PAGE["series"]
"""Return the names of the series of a service's scrape."""
families: Final[Callable[[], dict[str, list[Any]]]] = _PAGE["families"]
"""Return name, labels, series and more of each service's metrics."""
