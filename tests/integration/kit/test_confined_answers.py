"""Answers and failures of processes that read files of others: printable sentences."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.kit.errors import InvalidArgument, NotFound
from services.kit.process import confined as confinement
from services.kit.process.confined import confined
from tests.support import confined_calls as calls
from tests.support.paths import ROOT

pytestmark = pytest.mark.usefixtures("forked_readers")


def call(function: Callable[..., Any], *arguments: object, file: Path, **given: Any) -> Any:
    return confined(function, *arguments, file=file, reads=[ROOT / "tests"], **given)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the user, which no model needs."""
    file = tmp_path / "id_ed25519"
    file.write_text("secret")
    return file


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (calls.memory, "it takes more than"),
        (calls.depth, "its parts are nested too deep"),
        (calls.crash, "the process that read it crashed (SIGSEGV)"),
        (calls.killed, "was killed, as where memory runs out"),
        (calls.closed, "EOF while parsing"),
        (calls.failure, "KeyError"),
        (calls.refusal, "no  ]0;  here"),
        (calls.deep, "depth exceeded"),
        (calls.figure, "should be a valid number"),
        (calls.wrong_type, "should be a valid integer"),
    ],
)
def test_a_failure_is_one_sentence(
    secret: Path, monkeypatch: pytest.MonkeyPatch, function: Callable[[], Any], said: str
) -> None:
    """Whatever happens to the process; it names the file, and has no control characters."""
    monkeypatch.setattr(confinement, "memory_bytes", lambda: 2**30)
    with pytest.raises((InvalidArgument, NotFound)) as caught:
        call(function, file=secret)
    assert said in caught.value.message
    assert caught.value.message.isprintable()
    assert str(secret) in caught.value.message or function is calls.refusal


@pytest.mark.parametrize("text", ["\u2028", "\x85", "a\nb", "\x1b[2J", "\u202e"])
def test_control_characters_never_leave_a_process(secret: Path, text: str) -> None:
    """Beside texts that it was given, an answer is printable."""
    with pytest.raises(InvalidArgument, match="must be printable"):
        call(calls.spelled, text.encode().hex(), file=secret)
    assert call(calls.answer, text, file=secret) == text
