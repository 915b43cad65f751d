"""Processes that read files of others: what they may do, and what becomes of their failures."""

from collections.abc import Callable
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import pytest

from services.kit.errors import InvalidArgument
from services.kit.process import confined as confinement
from services.kit.process.confined import confined
from tests.support import confined_calls as calls
from tests.support.paths import ROOT

TESTS = ROOT / "tests"
BY_FILTER = {  # of calls: libseccomp
    "a socket of the internet",
    "a socket of this machine",
    "a process",
    "a ring for calls",
    "other permissions",
}
"""Attempts that only the filter of calls refuses."""


def call(function: Callable[..., Any], *arguments: object, file: Path, **given: Any) -> Any:
    return confined(function, *arguments, file=file, reads=[TESTS], **given)


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of the user, which no model needs."""
    file = tmp_path / "id_ed25519"
    file.write_text("secret")
    return file


def test_who_takes_over_a_parser_can_do_nothing(secret: Path) -> None:
    """No network, no program, no signal, no file beside the given ones, and no change of any."""
    expected = set() if find_library("seccomp") else BY_FILTER
    assert set(call(calls.permitted, secret, file=secret)) == expected
    assert secret.read_text() == "secret"
    assert names(secret.parent) == [secret.name]


def test_the_environment_holds_no_secret(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens of hubs, clouds and collectors stay with the command."""
    names = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "OTEL_EXPORTER_OTLP_HEADERS", "CINQUEFOIL_X")
    for name in names:
        monkeypatch.setenv(name, "secret")
    assert "secret" not in call(calls.environment, file=secret).values()


def test_no_privilege_is_left(secret: Path) -> None:
    """Also where the command runs as root."""
    status = call(calls.status, file=secret)
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"


def test_processor_time_is_bounded(secret: Path) -> None:
    """A loop without end is ended, and the sentence has the bound."""
    with pytest.raises(InvalidArgument, match="more than 1 s of processor time"):
        call(calls.processor, file=secret, cpu_s=1)


def test_time_by_the_clock_is_bounded(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waits for ever is killed."""
    monkeypatch.setattr(confinement, "_START_S", 1.0)
    monkeypatch.setattr(confinement, "_WAITS", 0)
    with pytest.raises(InvalidArgument, match="it took longer than 1 s"):
        call(calls.sleep, file=secret, cpu_s=60)


def test_an_answer_is_bounded(secret: Path) -> None:
    with pytest.raises(InvalidArgument, match="more than 1000 bytes"):
        call(calls.answer, "x" * 2000, file=secret, answer_bytes=1000)


def test_a_folder_to_write_into_takes_files_only(secret: Path) -> None:
    """No link out of it that the command would follow, and nothing beside it."""
    folder = secret.parent / "scratch"
    folder.mkdir()
    call(calls.write, folder, file=secret, scratch=folder)
    assert names(folder) == ["written"]
    assert names(secret.parent) == [secret.name, "scratch"]


def test_a_name_that_is_not_unicode_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="is not Unicode"):
        call(calls.answer, "", file=tmp_path / "\udcff.onnx")
