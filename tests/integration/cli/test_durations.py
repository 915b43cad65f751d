"""`cinquefoil predictor forget` needs an explicit scope."""

import pytest
from typer.testing import CliRunner

from services.cli.main import app


@pytest.mark.parametrize("wrong", [(), ("--older-than", "soon")], ids=["nothing", "no-age"])
def test_forgetting_without_a_scope_is_refused(wrong: tuple[str, ...]) -> None:
    """A slip of the hand deletes nothing: no option is not everything."""
    ended = CliRunner().invoke(app, ["predictor", "forget", *wrong])

    assert ended.exit_code == 2
    assert "older-than" in ended.output
