"""A person's mistake ends in a sentence and an exit status, never in a traceback."""

import io
import socket
import zipfile
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from services.cli.desired import read as read_desired
from services.cli.main import app
from services.cli.runner import explained
from services.cli.samples import read_array
from services.kit.config import Deployment
from services.kit.config.loader import ConfigError, load
from services.kit.errors import FailedPrecondition, InvalidArgument
from services.local.up.ports import refuse_taken
from tests.support.paths import ROOT

pytestmark = pytest.mark.usefixtures("forked_readers")


def invoked(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, " ".join(result.output.replace("│", " ").split())


def test_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(typer.Exit) as ended, explained():
        (tmp_path / "file/folder").mkdir(parents=True)
    assert ended.value.exit_code == 1
    assert capsys.readouterr().err == f"{tmp_path}/file/folder: Not a directory\n"


def test_an_os_error_that_names_no_file_stays_a_mistake_of_ours() -> None:
    with pytest.raises(OSError, match="out of paper"), explained():
        raise OSError(5, "out of paper")


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (("plan", "show", 2**70), 2, "less than or equal to 1000000000"),
        (("gpuagent", "show", "--node", "attic", "--config", ROOT / "cinquefoil.yaml"), 2,
         "no node 'attic'; there is node-0"),
    ],
    ids=["a version that no message carries", "a node that is not"],
)  # fmt: skip
def test_an_argument_that_cannot_be_is_refused(
    arguments: tuple[object, ...], status: int, sentence: str
) -> None:
    code, text = invoked(*arguments)
    assert code == status
    assert sentence in text


def npy(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, np.asarray(array))
    return file.getvalue()


def archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        packed.writestr("a.npy", npy([1.0]))
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [b"", b"no array", archive(), npy([1j]), npy([None])],
    ids=["empty", "text", "npz", "complex", "objects"],
)
def test_only_arrays_of_numbers_and_texts_are_sent(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "array.npy").write_bytes(content)
    with pytest.raises(InvalidArgument, match="number"):
        read_array(tmp_path / "array.npy")


def test_an_array_is_read_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header of 128 bytes that states 2^40 numbers takes no memory of the command's."""
    monkeypatch.setattr(np.lib.format, "read_array", pytest.fail)
    bomb = npy([1.0]).replace(b"(1,), }            ", b"(1099511627776,), }")
    (tmp_path / "bomb.npy").write_bytes(bomb)
    with pytest.raises(InvalidArgument, match=r"bomb\.npy"):
        read_array(tmp_path / "bomb.npy")
    (tmp_path / "good.npy").write_bytes(npy([1.5, 2.5]))

    assert read_array(tmp_path / "good.npy").tolist() == [1.5, 2.5]


def test_desired_states_with_numbers_that_no_message_carries_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("version: v1\ngpus: [{uuid: G, slices: [1g.5gb@99999999999]}]\n")
    with pytest.raises(ConfigError, match=r"line 2: gpus\.0\.slices\.0"):
        read_desired(file)


def test_a_second_suite_on_the_same_addresses_is_refused(tmp_path: Path) -> None:
    """The second suite's services would end, while the first suite's say that they serve."""
    deployment = load_with_ports(tmp_path)
    refuse_taken(deployment)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        router = deployment.router.model_copy(update={"metrics": address})
        with pytest.raises(FailedPrecondition, match=f"router.metrics: cannot listen at {address}"):
            refuse_taken(deployment.model_copy(update={"router": router}))


def load_with_ports(folder: Path) -> Deployment:
    file = folder / "cinquefoil.yaml"
    file.write_text((ROOT / "cinquefoil.yaml").read_text())
    found = load(file)
    free = {"listen": "127.0.0.1:0"}
    sections = ("carbon", "console", "planner", "router")
    update = {name: getattr(found, name).model_copy(update=free) for name in sections}
    update["router"] = update["router"].model_copy(update={"http_listen": ""})
    nodes = {name: node.model_copy(update=free) for name, node in found.nodes.items()}
    return found.model_copy(update={**update, "nodes": nodes})


def test_a_full_disk_ends_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Linux' /dev/full takes no byte; the error of a write does not know the file's name."""
    with pytest.raises(typer.Exit) as ended, explained():
        Path("/dev/full").write_text("a plan", encoding="utf-8")

    assert ended.value.exit_code == 1
    assert "nothing more can be written: No space left on device" in capsys.readouterr().err
