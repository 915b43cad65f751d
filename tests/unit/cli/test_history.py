"""The past as curves and sentences: what is shown is what was recorded, in 80 columns."""

import io
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from cinquefoil.gpuagent.v1.inventory_pb2 import Placement, SegmentSpec
from cinquefoil.planner.v1.plan_pb2 import Plan, PlanInputs, PlannedSegment
from services.cli.history.render import render, rows, sparkline
from services.cli.history.sentence import sentence

AT = datetime(2026, 3, 1, 18, 2, tzinfo=UTC)
AT_S = AT.timestamp()


def plan(version: int, reason: str, *slices: tuple[str, str, str], **grid: float) -> Plan:
    """Return a plan of slices: model, variant, "profile@start"."""
    segments = []
    for model, variant, place in slices:
        profile, _, start = place.partition("@")
        placement = Placement(profile=profile, start=int(start))
        spec = SegmentSpec(model=model, variant=variant, gpu_uuid="G", placement=placement)
        segments.append(PlannedSegment(spec=spec))
    return Plan(
        version=version,
        reason=reason,
        segments=segments,
        inputs=PlanInputs(intensity_gco2e_per_kwh=grid),
    )


FIRST = plan(13, "first plan: 1 GPU", ("digits", "svc", "3g.20gb@0"), Z=182.0)


def test_a_sentence_says_when_why_and_what_moved() -> None:
    """As an operator would say it; the grid by the figures of the plan's reason."""
    reason = "carbon: Z 182.0 -> 205.4 gCO2e/kWh (+12.9 %)"
    moved = plan(14, reason, ("digits", "mlp-64", "1g.5gb@0"), Z=205.4)

    assert sentence(moved, FIRST, AT) == (
        "Plan 14 at 18:02: grid 182 -> 205 g/kWh, digits moved to mlp-64 on one slice."
    )


def test_sentences_of_other_causes_and_changes() -> None:
    """A first plan, more slices, other slices, a model that ends, and more than there is room."""
    three = [("digits", "svc", f"1g.5gb@{n}") for n in range(3)]
    others = [(f"m{n}", "x", f"1g.5gb@{n}") for n in range(5)]
    cases = [
        (FIRST, None, "first plan: 1 GPU, digits began with svc on one slice"),
        (plan(2, "demand: digits 1.0 -> 9.0 req/s", *three), FIRST, "went from one to three slice"),
        (plan(3, "x", ("digits", "svc", "3g.20gb@4")), FIRST, "x, digits moved to other slices"),
        (plan(4, "x"), FIRST, "x, digits stopped"),
        (plan(5, "x", ("digits", "svc", "3g.20gb@0")), FIRST, "x, the same slices stay"),
        (plan(6, "a; b", *others), None, "a, m0 began with x on one slice, m1 began with x on one"),
        (plan(7, "x", *others), None, "three more models changed."),
        (
            plan(8, "x", ("digits", "svc", "3g.20gb@0"), ("digits", "lin", "1g.5gb@4")),
            FIRST,
            "digits moved to lin and svc on two slices",
        ),
    ]
    for now, before, said in cases:
        assert said in sentence(now, before, AT)


def test_a_line_has_blanks_where_nothing_is_known() -> None:
    assert sparkline([0.0, None, None, 7.0], cells=4) == "▁  █"
    assert sparkline([5.0, 5.0, None], cells=3) == "▄▄ "
    assert sparkline([]) == ""


@given(st.lists(st.none() | st.floats(-1e9, 1e9), max_size=200), st.integers(1, 60))
def test_a_line_is_no_longer_than_it_may_be(values: list[float | None], cells: int) -> None:
    line = sparkline(values, cells)

    assert len(line) == min(cells, len(values))
    assert set(line) <= set(" ▁▂▃▄▅▆▇█")
    assert bool(line.strip()) == any(value is not None for value in values)


def document(**parts: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "since_s": AT_S - 86_400,
        "until_s": AT_S,
        "step_s": 3600,
        "times_s": [AT_S - 7200, AT_S - 3600],
        "zones": [{"zone": "US-CAL", "intensity_gco2e_per_kwh": [180.0, 205.0], "forecast": {}}],
        "power": {"measured_w": [310.0, None], "base_w": [420.0, None]},
        "emissions": {"measured_gco2e_per_h": [55.8, None], "base_gco2e_per_h": [75.6, None]},
        "models": [
            {
                "model": "a-model-with-a-long-name",
                "percentile": 95.0,
                "objective_s": 0.4,
                "latency_s": [0.2, 0.5],
                "requests_rps": [40.0, 123.0],
                "within": [1.0, 0.9],
                "accuracy": [0.97, None],
            }
        ],
        "gpus": [{"uuid": "G", "name": "node-0/0", "compute_slices": 7, "power_w": [1.0, 2.0]}],
        "plans": [{"version": 14, "since_s": AT_S, "sentence": "Plan 14 at 18:02: so."}],
        "saved": {"today_gco2e": 310.0, "low_gco2e": 280.0, "high_gco2e": 340.0, "share": 0.31},
    }
    return found | parts


def printed(found: dict[str, Any]) -> str:
    text = io.StringIO()
    Console(file=text, width=80).print(render(found, 24))
    return text.getvalue()


def test_the_table_fits_80_columns_and_says_what_happened_last() -> None:
    """Nothing is cut or wrapped in the middle; a latency above its objective stands out."""
    lines = printed(document()).splitlines()

    assert all(cell_len(line) <= 80 for line in lines)
    assert any(line.lstrip().startswith("US-CAL g/kWh") and "205" in line for line in lines)
    assert "Plan 14 at 18:02: so." in lines
    said = "Saved today (UTC): 310 gCO2e, 31.0 % of BASE's (between 280 gCO2e and 340 gCO2e)."
    assert said in " ".join(" ".join(lines).split())


def test_without_a_record_the_command_that_starts_one_is_named() -> None:
    nothing: dict[str, Any] = {"saved": dict.fromkeys(("low_gco2e", "high_gco2e", "share"))}
    empty: dict[str, Any] = {"measured_w": [], "base_w": []}
    grams: dict[str, Any] = {"measured_gco2e_per_h": [], "base_gco2e_per_h": []}
    found = document(
        times_s=[], zones=[], models=[], gpus=[], plans=[], power=empty, emissions=grams, **nothing
    )

    text = " ".join(printed(found).split())
    assert "start it with `cinquefoil up`" in text
    assert "`cinquefoil status` says what is missing" in text
    assert "nothing is saved yet" in text


def test_csv_has_a_column_for_each_series_and_a_row_for_each_time() -> None:
    heading, first, second = rows(document())

    assert heading[:3] == ["time", "intensity_gco2e_per_kwh[US-CAL]", "measured_w"]
    assert first[:3] == ["2026-03-01T16:02:00+00:00", 180.0, 310.0]
    assert second[2] is None
    assert len(heading) == len(first) == len(second)
