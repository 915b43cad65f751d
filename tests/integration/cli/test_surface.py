"""The command line's surface: quick to answer, and honest about what it lacks."""

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from services.cli.commands import models
from services.cli.main import app
from services.kit.config import Discipline, InstanceChoice
from tests.support.paths import ROOT

Words = tuple[str, ...]


def all_below(command: Any, path: Words = ()) -> Iterator[tuple[Words, Any]]:
    """Yield a command and all below it, with the words that lead there."""
    yield path, command
    if isinstance(command, TyperGroup):
        for name, each in command.commands.items():
            yield from all_below(each, (*path, name))


COMMANDS = dict(all_below(get_command(app)))


def test_help_imports_no_library_of_any_service() -> None:
    """Lazy imports, which keep `cinquefoil --help` instant and every image small."""
    heavy = {
        "grpc",
        "highspy",
        "matplotlib",
        "networkx",
        "numpy",
        "onnxruntime",
        "pydantic",
        "sklearn",
    }
    code = "import sys, services.cli.main; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(ended.stdout.split())


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_in_lines_as_wide_as_the_terminal(
    command: Words,
) -> None:
    result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "1000"})

    assert result.exit_code == 0
    assert "Usage:" in result.output
    paragraphs = inspect.cleandoc(COMMANDS[command].help or "").replace("`", "").split("\n\n")
    assert paragraphs[0]
    assert all(each.help or each.hidden for each in COMMANDS[command].params)
    for paragraph in paragraphs:
        if not paragraph.startswith("- "):
            assert " ".join(paragraph.split()) in result.output


def test_a_library_that_an_image_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError("No module named 'highspy'", name="highspy")

    monkeypatch.setattr("services.cli.commands.serve.importlib.import_module", missing)
    result = CliRunner().invoke(app, ["planner", "serve"])
    assert result.exit_code == 1
    assert "highspy is not installed: pip install 'cinquefoil[all]'" in result.output


def test_an_agent_of_several_nodes_needs_its_node_named(tmp_path: Path) -> None:
    file = tmp_path / "cinquefoil.yaml"
    text = (ROOT / "cinquefoil.yaml").read_text()
    second = "  node-1: {zone: US-CAL, listen: 127.0.0.1:8473, simulated: [a30]}\n\nmodels:"
    file.write_text(text.replace("\nmodels:", second))
    result = CliRunner().invoke(app, ["gpuagent", "serve", "--config", str(file)])
    assert result.exit_code == 2
    assert "say which of node-0, node-1" in result.output


def test_infer_takes_an_image_or_an_input_not_both() -> None:
    result = CliRunner().invoke(app, ["infer", "digits", "--image", "1", "--input", "x.npy"])
    assert result.exit_code == 2


def test_the_policies_that_help_names_are_those_that_there_are() -> None:
    assert get_args(Discipline) == models.DISCIPLINES
    assert get_args(InstanceChoice) == models.CHOICES
