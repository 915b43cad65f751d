"""docs/conditions.md explains every condition; docs/troubleshooting.md quotes what is printed."""

import re

from cinquefoil.condition.v1.records import ConditionKind
from services.kit.conditions import EFFECTS
from tests.support.paths import ROOT

_ROW = re.compile(r"^\| `([A-Z_]+)` \| (\w+) \| .+ \| .+ \|$", re.MULTILINE)


def test_the_page_has_a_row_for_each_condition_with_its_effect() -> None:
    rows = _ROW.findall((ROOT / "docs/conditions.md").read_text())

    assert sorted(rows) == sorted((kind.name, effect.value) for kind, effect in EFFECTS.items())


_QUOTED = re.compile(r"`([^`]+)`")
_VARIABLE = re.compile(r"Waiting: |; [A-Z_]+ node/node-0:|node-0|'net'|\.\.\.|\d+|;? [A-Z_]{6,}.*")
_SOURCES = (
    "services/cli/plan/render.py",
    "services/cli/up/*.py",
    "services/kit/conditions.py",
    "services/cli/client.py",
    "services/planner/control/reconciler.py",
    "services/router/core/**/*.py",
    "services/gpuagent/devices/cpu/*.py",
)


def test_troubleshooting_names_conditions_that_exist() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    named = set(re.findall(r"`([A-Z_]{6,})`", page))

    assert named
    assert named <= {kind.name for kind in ConditionKind}


def test_troubleshooting_quotes_what_the_code_prints() -> None:
    """Each part of a quotation between its variables is in the text of a module."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    printed = "".join(file.read_text() for glob in _SOURCES for file in ROOT.glob(glob))
    printed = re.sub(r'"\s*f?"', "", re.sub(r"\{[^{}]*\}", "\0", printed))
    symptoms = [row.split("|")[1] for row in page.splitlines() if row.startswith("| ")]
    parts = [
        part.strip()
        for symptom in symptoms
        for quoted in _QUOTED.findall(symptom)
        if " " in quoted and not quoted.startswith("cinquefoil ")
        for part in _VARIABLE.split(quoted)
    ]

    assert len([part for part in parts if part]) > 10
    assert not [part for part in parts if part not in printed]
