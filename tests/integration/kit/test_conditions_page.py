"""docs/conditions.md is the reference of conditions."""

import re

from services.kit.conditions import Condition, ConditionKind
from tests.support.paths import ROOT

_ROW = re.compile(r"^\| `([A-Z_]+)` \| (\w+) \| .+ \| .+ \|$", re.MULTILINE)


def test_the_page_has_a_row_for_each_condition_with_its_effect() -> None:
    rows = _ROW.findall((ROOT / "docs/conditions.md").read_text())

    assert sorted(rows) == sorted(
        (kind.name, Condition(kind, "", "").effect.value) for kind in ConditionKind
    )
