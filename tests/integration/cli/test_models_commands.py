"""`cinquefoil models add` and `remove`: what they do to the file, and how they find a suite."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from services.cli.main import app
from services.cli.yaml_file import edited
from services.kit.config.loader import ConfigError, load
from services.kit.config.models import TableProfile
from services.kit.net import free_port
from services.local.up.running import reloading, request_reload
from tests.support.paths import ROOT

pytestmark = pytest.mark.usefixtures("forked_readers")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A deployment whose planner does not run."""
    path = tmp_path / "cinquefoil.yaml"
    path.write_text((ROOT / "cinquefoil.yaml").read_text())
    monkeypatch.setenv("CINQUEFOIL_PLANNER__LISTEN", f"127.0.0.1:{free_port()}")
    return path


def models(*words: object) -> Result:
    return CliRunner().invoke(app, ["models", *map(str, words)])


def test_a_model_is_added_with_every_comment_kept(config: Path, convnets: Path) -> None:
    before = config.read_text()
    result = models("add", "--onnx", convnets / "conv-16.onnx", "--config", config)

    assert f"`cinquefoil up --config {config}` serves it" in result.stdout.replace("\n", "")
    after = load(config).models
    assert set(after) == {"digits", "conv-16"}
    assert after["conv-16"].variants["conv-16"].file == convnets / "conv-16.onnx"
    comments = [line.partition("#")[2].strip() for line in before.splitlines() if "#" in line]
    assert all(comment in config.read_text() for comment in comments)


def test_where_cores_serve_an_added_model_is_measured_as_init_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, convnets: Path
) -> None:
    """Its profile is a table of times, with a row for each batch size of the deployment."""
    monkeypatch.setenv("CINQUEFOIL_PLANNER__LISTEN", f"127.0.0.1:{free_port()}")
    words = ["init", str(tmp_path), "--no-control", "--onnx", str(convnets / "conv-16.onnx")]
    assert CliRunner().invoke(app, words).exit_code == 0
    config = tmp_path / "cinquefoil.yaml"
    config.write_text(config.read_text().replace("batch_sizes: [1, 2, 4, 8]", "batch_sizes: [1]"))
    name = ("--name", "other")
    result = models("add", "--onnx", convnets / "conv-16.onnx", *name, "--config", config)

    assert result.exit_code == 0, result.output
    (variant,) = load(config).models["other"].variants.values()
    assert isinstance(variant.profile, TableProfile)
    measured = variant.profile.path.read_text().splitlines()
    assert {row.split(",")[2] for row in measured if row.startswith("cpu-")} == {"1"}


def test_a_dry_run_shows_the_section_and_leaves_the_file(config: Path, convnets: Path) -> None:
    """Without a planner it says why there is no plan to show."""
    before = config.read_text()
    words = ("--onnx", convnets / "conv-16.onnx", "--name", "other", "--dry-run")
    result = models("add", *words, "--config", config)

    assert "  other:\n    slo:" in result.stdout
    assert "The plan that would follow is not known: planner" in result.stdout
    assert config.read_text() == before
    assert list(config.parent.iterdir()) == [config]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("remove", "cats"), "no model 'cats' in"),
        (("remove", "digits"), "digits is the only model of"),
        (("add", "--onnx", "{tree}", "--name", "digits"), "models.digits exists in"),
        (("add", "--onnx", "{tree}", "--name", "a b"), "models.a b"),
    ],
)
def test_what_cannot_be_changes_nothing(
    config: Path, digits_models: Path, words: tuple[str, ...], said: str
) -> None:
    before = config.read_text()
    given = [word.format(tree=digits_models / "tree.onnx") for word in words]
    result = models(*given, "--config", config)

    assert said in result.stderr
    assert result.exit_code in {1, 2}
    assert config.read_text() == before


def test_a_mistake_names_the_file_and_not_its_draft(config: Path) -> None:
    with pytest.raises(ConfigError) as caught, edited(config) as document:
        document["models"]["digits"]["demand_rps"] = -1
    assert caught.value.path == config


async def test_a_suite_is_found_while_it_runs_and_only_then(tmp_path: Path) -> None:
    """The lock says so, not a process id that some other process may have by now."""
    reloaded = asyncio.Event()
    assert not request_reload(tmp_path)
    with reloading(reloaded.set, pytest.fail, tmp_path):
        assert request_reload(tmp_path)
        await asyncio.wait_for(reloaded.wait(), 5)
    assert not request_reload(tmp_path)
