"""Metrics that the documentation names; the suite's test compares the reference with a scrape."""

import re
from collections.abc import Iterator

from tests.support import reference
from tests.support.paths import ROOT

_NAME = re.compile(r"\b(?:cinquefoil|gen_ai)_\w*(?:\{\w+(?:,\w+)+\}\w+)?\*?")
_PARAMETERS = {"cinquefoil_status", "cinquefoil_reason"}
"""Of streams' errors: no metrics."""


def test_pages_and_rules_name_only_metrics_that_there_are() -> None:
    """By the name that Prometheus shows, so that it can be pasted into a query."""
    known = set(_PARAMETERS)
    for found in reference.families().values():
        for each in found:
            known |= {each.name, *each.series, *each.labels}
    unknown = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (*(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy/prometheus").glob("*.yml"))
        for written in _NAME.findall(path.read_text())
        for name in _expanded(written)
        if not (
            any(each.startswith(name[:-1]) for each in known)
            if name.endswith("*")
            else name in known
        )
    }
    assert sorted(unknown) == []


def _expanded(written: str) -> Iterator[str]:
    """Yield `a_{b,c}_d` as a_b_d and a_c_d."""
    before, brace, rest = written.partition("{")
    inside, _, after = rest.partition("}")
    if not brace:
        yield written
    for each in inside.split(",") if brace else ():
        yield f"{before}{each}{after}"
