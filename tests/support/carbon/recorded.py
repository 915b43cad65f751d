"""Answers of providers written after what their users reported, each with what becomes of it.

The files are in tests/rpc/carbon/recorded, a folder for each kind of source.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatch
from typing import Any
from urllib.parse import parse_qsl

import yaml

from tests.support.fake_provider import Answer, HttpRequest
from tests.support.paths import ROOT

FOLDER = ROOT / "tests/rpc/carbon/recorded"
NAMES = sorted(str(file.relative_to(FOLDER).with_suffix("")) for file in FOLDER.rglob("*.yaml"))


@dataclass
class Recorded:
    """One file.

    Attributes:
        report: The report, a sentence.
        source: Settings of the source, without "url".
        now: Time of the first poll.
        answers: By pattern of the path's end: the answer, or one for each request; the last stays.
        expected: Last outcome; value in force, history and forecast; parts that came; warnings,
            all of them in order, and some other lines; numbers of requests.
        polls: Number of polls, a minute apart.
    """

    report: str
    source: Mapping[str, Any]
    now: str
    answers: Mapping[str, Any]
    expected: Mapping[str, Any]
    polls: int = 1
    _served: Counter[str] = field(default_factory=Counter)

    @classmethod
    def read(cls, name: str) -> "Recorded":
        """Return the file of a name."""
        return cls(**yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))

    @property
    def start(self) -> datetime:
        """Time of the first poll."""
        return datetime.fromisoformat(self.now)

    def route(self, request: HttpRequest) -> Answer:
        """Answer a request; one with the ETag or date of its answer: 304."""
        key = next((key for key in self.answers if fnmatch(request.path, f"*{key}")), None)
        if key is None:
            return Answer("no such path", status=404)
        given = self.answers[key]
        series: Sequence[Any] = given if isinstance(given, list) else [given]
        answer = series[min(self._served[key], len(series) - 1)]
        self._served[key] += 1
        headers = answer.get("headers", {})
        known = {request.headers.get(each) for each in ("if-none-match", "if-modified-since")}
        if known & ({headers.get("etag"), headers.get("last-modified")} - {None}):
            return Answer(status=304)
        return Answer(answer.get("body", ""), answer.get("status", 200), headers)

    def sent(self, wanted: str, requests: Sequence[HttpRequest]) -> int:
        """Return the number of requests for a path's end, with a query where one is given."""
        path, _, query = wanted.partition("?")
        needed = set(parse_qsl(query))
        return sum(
            fnmatch(each.path, f"*{path}") and needed <= set(each.query.items())
            for each in requests
        )
