"""Accuracies that `cinquefoil eval --save` puts into the deployment file."""

from pathlib import Path

import pytest

from services.cli.evaluate.run import Result, keep
from services.kit.errors import InvalidArgument

FILE = "models: {chat: {variants: {q8: {accuracy: 0.5}, q2: {accuracy: 0.5}}}}\n"


def test_a_variant_that_got_nothing_right_is_named_and_nothing_is_saved(tmp_path: Path) -> None:
    """An accuracy of 0 makes the file invalid."""
    path = tmp_path / "cinquefoil.yaml"
    path.write_text(FILE)

    with pytest.raises(InvalidArgument, match=r"q2.*320 questions"):
        keep(path, "chat", [Result("q8", 320, 90, 0, 9), Result("q2", 320, 0, 320, 9)], 0)
    assert path.read_text() == FILE
