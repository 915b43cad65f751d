"""`cinquefoil predictor train` writes a predictor that `evaluate` and the service can use."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.predictor.runtime.length_models import LengthModels
from services.predictor.training.baselines import CLASSIFIED, baselines
from services.predictor.training.core.fit import Edges
from services.predictor.training.core.rows import Row
from tests.support.predictor.prompt_log import log


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("log") / "log.jsonl"
    rows = [{**asdict(row), "output_tokens": row.tokens} for row in log()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_a_log_becomes_a_predictor_and_a_report_beside_simple_predictors(
    data: Path, tmp_path: Path
) -> None:
    """A trained model can be judged again, and used by the service."""
    trained = CliRunner().invoke(app, ["predictor", "train", "--data", str(data), "--json",
                                       "--out", str(tmp_path)])  # fmt: skip
    assert trained.exit_code == 0, trained.output
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["answers"].keys() == {"small", "large"}
    found = report["measures"]["small"]
    assert found["predictor"]["accuracy"] > found["majority"]["accuracy"] + 0.2
    assert "TF-IDF + ridge" in found
    assert sum(map(sum, report["confusion"])) == sum(report["answers"].values())
    assert (tmp_path / "confusion.png").read_bytes().startswith(b"\x89PNG")

    model = tmp_path / "predictor.onnx"
    judged = CliRunner().invoke(app, ["predictor", "evaluate", "--data", str(data), "--model",
                                      str(model), "--out", str(tmp_path)])  # fmt: skip
    assert judged.exit_code == 0, judged.output
    assert "pair order" in judged.output
    assert LengthModels.of(model, ["small"]).classes("small").estimate().expected_tokens > 0


def test_models_whose_answers_teach_nothing_are_judged_like_any() -> None:
    """One class alone, prompts that share no word, hardly any prompts: all occur in real logs."""
    alike = [Row("alike", f"question {n}", 5) for n in range(8)]
    rare = [Row("rare", f"word{n}", 5 + n) for n in range(2)]
    edges: Edges = {"alike": (4.0, 5.0, 6.0, 7.0), "rare": (4.0, 5.0, 6.0, 7.0)}
    found = baselines(alike + rare, alike[:2] + rare[:1], edges)
    assert found["alike"][CLASSIFIED].accuracy == 1
    assert found.keys() == {"alike", "rare"}


def test_a_wrong_line_ends_the_command_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"model": "m"}\n')
    arguments = ["predictor", "train", "--data", str(tmp_path / "log.jsonl")]
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 1
    assert "log.jsonl:1: prompt" in ended.output
