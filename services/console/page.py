"""A report as one HTML file: the console's own modules, and the figures, in one document.

It loads nothing: its policy (CSP) forbids that, so that it can be read offline, sent and archived.
Modules stay as they are served; an import map (WHATWG, "HTML", section 8.1.5.2) gives each name
that they import the module's text as a data URL.
"""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

from services.console.documents import as_text

STATIC: Final = Path(__file__).parent / "static"

_IMPORTED: Final = re.compile(r'from "\./([\w/]+\.js)"')
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="content-security-policy" content="default-src 'none'; \
script-src 'unsafe-inline' data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
<script>{uplot}</script>
<script type="importmap">{imports}</script>
<script type="application/json" id="report">{report}</script>
<script type="module">import "report.js";</script>
</head>
<body>
<main id="main"><noscript><p>This report needs JavaScript.</p></noscript></main>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart.

    Attributes:
        name: In the legend.
        values: One for each time of the chart, in its unit; None: nothing is known.
        dashed: It is modelled or an objective, and was not measured.
        colour: In CSS, as of `palette`; "": the next of the page's own.
    """

    name: str
    values: Sequence[float | None]
    dashed: bool = False
    colour: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time; the page has their figures as a table, too.

    Attributes:
        caption: What they are.
        unit: Of the values.
        times_s: Of the values, rising, s since 1970.
        lines: From the bottom up, where they are stacked.
        stepped: A value holds until the next time.
        stacked: Lines that are not dashed lie on one another.
        from_zero: The axis of values begins at 0.
        marks_s: Times of changes of plans, s since 1970.
    """

    caption: str
    unit: str
    times_s: Sequence[float]
    lines: Sequence[Line]
    stepped: bool = False
    stacked: bool = False
    from_zero: bool = True
    marks_s: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Band:
    """One slice of a GPU for as long as it ran the same.

    Attributes:
        since_s: Its beginning, s since 1970.
        until_s: Its end.
        start: Its first compute slice.
        compute_slices: How many it has.
        runs: "model/variant".
        colour: In CSS, as of `palette`.
    """

    since_s: float
    until_s: float
    start: int
    compute_slices: int
    runs: str
    colour: str


@dataclass(frozen=True, slots=True)
class Bands:
    """Slices of a GPU over time.

    Attributes:
        caption: What they are.
        compute_slices: How many the GPU has.
        bands: In any order.
    """

    caption: str
    compute_slices: int
    bands: Sequence[Band]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text.

    Attributes:
        caption: What they are.
        columns: Headings; one that starts with ">" is aligned to the right.
        rows: A cell per column.
        folded: It is shown on request.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Account:
    """The account, as the console's page shows it.

    Attributes:
        by: "model", "node" or "zone".
        rows: One each, the total last.
        hours: The totals of each hour.
        until: The end of what is known, ISO 8601: the last hour may not be over.
        colours: In CSS, of models, as of `palette.lines`; of others the page has its own.
    """

    by: str
    rows: Sequence[Any]
    hours: Sequence[Mapping[str, Any]]
    until: str
    colours: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Report:
    """Content of a page.

    Attributes:
        title: Of what it reports.
        headline: The result, in words; may be empty.
        about: Its circumstances.
        parts: In order.
    """

    title: str
    headline: str
    about: str
    parts: Sequence[Chart | Bands | Table | Account]


def write(report: Report, path: Path) -> None:
    """Write a report as one HTML file that needs nothing else."""
    path.write_text(html(report), encoding="utf-8")


def html(report: Report) -> str:
    """Return a report as one HTML document that needs nothing else."""
    parts = [{"kind": type(part).__name__.lower(), **asdict(part)} for part in report.parts]
    modules = {
        name: f"data:text/javascript;base64,{b64encode(module.encode()).decode()}"
        for name, module in _modules("report.js").items()
    }
    return _PAGE.format(
        title=escape(report.title),
        style=_read("style.css") + _read("vendor/uplot.css"),
        uplot=_read("vendor/uplot.js"),
        imports=as_text({"imports": modules}),
        # "<" would let a name end the element: JSON has another way to write it.
        report=as_text(asdict(report) | {"parts": parts}).replace("<", "\\u003c"),
    )


def _modules(first: str) -> dict[str, str]:
    """Return a module and all that it imports, by name, with these names in their imports."""
    found: dict[str, str] = {}
    to_read = [first]
    while to_read:
        name = to_read.pop()
        if name not in found:
            module = _read(name)
            to_read += _IMPORTED.findall(module)
            found[name] = _IMPORTED.sub(r'from "\1"', module)
    return found


def _read(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")
