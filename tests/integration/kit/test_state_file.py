"""Files of state: replaced as a whole, and read as they were written or not at all."""

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.errors import FailedPrecondition, Unavailable
from services.kit.lock_file import LockFile
from services.kit.state_file import (
    Damaged,
    damaged_files,
    decoded,
    read_disposable,
    read_parsed,
    write_json,
)

DATA = {"version": 3, "name": "GPU-1", "energy_j": 12345.678, "parts": [1, 2, {"a": None}]}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file as it is written."""
    path = tmp_path_factory.mktemp("written") / "f.json"
    write_json(path, DATA)
    return path.read_bytes()


def test_a_file_is_replaced_as_a_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "f.json"
    write_json(path, {"version": 3, "old": True}, durable=False)
    write_json(path, DATA)

    assert read_parsed(path, dict, version=3) == DATA
    assert list(path.parent.iterdir()) == [path]
    assert json.loads(path.read_text()).items() >= DATA.items(), "people and older readers see JSON"


def test_every_flip_of_a_bit_is_noticed(content: bytes) -> None:
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged, match=r"f\.json is damaged"):
            decoded(Path("f.json"), bytes(flipped), version=3)


@given(st.data())
def test_cuts_zeros_and_foreign_bytes_are_noticed(content: bytes, data: st.DataObject) -> None:
    """Whatever is read is what was written."""
    start = data.draw(st.integers(0, len(content) - 1))
    length = data.draw(st.integers(1, len(content) - start))
    foreign = data.draw(
        st.sampled_from([b"", bytes(length)]) | st.binary(min_size=length, max_size=length)
    )
    damaged = content[:start] + foreign + content[start + length :]
    if damaged == content:
        assert decoded(Path("f.json"), damaged, version=3) == DATA
    else:
        with pytest.raises(Damaged):
            decoded(Path("f.json"), damaged, version=3)


def test_a_file_from_before_there_were_checksums_is_read(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text(json.dumps(DATA))

    assert read_parsed(tmp_path / "f.json", dict, version=3) == DATA


def test_another_version_and_values_that_cannot_be_are_damage(tmp_path: Path) -> None:
    write_json(tmp_path / "f.json", DATA)

    with pytest.raises(Damaged, match="not of version 4"):
        read_parsed(tmp_path / "f.json", dict, version=4)
    with pytest.raises(Damaged, match="missing"):
        read_parsed(tmp_path / "f.json", lambda data: data["missing"], version=3)


def test_a_disposable_file_is_set_aside_and_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(bytes(100))

    assert read_disposable(path, dict, version=3) is None
    write_json(path, DATA)

    assert read_disposable(path, dict, version=3) == DATA
    (aside,) = damaged_files(tmp_path)
    assert aside.read_bytes() == bytes(100)
    assert aside.name.startswith("f.json.damaged-2")


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.ENOSPC, "DISK_FULL"), (errno.EDQUOT, "DISK_FULL"), (errno.EROFS, "STATE_NOT_WRITABLE")],
)
def test_a_disk_that_takes_nothing_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, reason: str
) -> None:
    path = tmp_path / "f.json"
    write_json(path, DATA)

    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unavailable, match=os.strerror(number)) as failed:
        write_json(path, {"version": 3})

    assert failed.value.reason == reason
    assert read_parsed(path, dict, version=3) == DATA
    assert list(tmp_path.iterdir()) == [path], "half a file would take room"


def test_who_is_refused_a_lock_learns_who_holds_it(tmp_path: Path) -> None:
    """By process, host and time; a lock that was let go is free."""
    with LockFile(tmp_path / "lock", "s") as first, LockFile(tmp_path / "lock", "s") as second:
        assert first.take()
        assert not second.take()
        assert second.holder().startswith(f"process {os.getpid()} on {os.uname().nodename}, since ")
    with LockFile(tmp_path / "lock", "s") as third:
        assert third.take()


def test_a_broken_lock_is_the_next_ones(tmp_path: Path) -> None:
    """The holder of the file before finds that it holds nothing, and cannot take it back."""
    with LockFile(tmp_path / "lock", "s") as first, LockFile(tmp_path / "lock", "s") as second:
        assert first.take()
        assert first.take(), "it has it still"
        second.break_open()
        assert second.take()
        assert not first.take()
        assert second.holder_pid() == os.getpid()


def test_a_lock_that_cannot_be_made_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(FailedPrecondition, match="file/lock cannot be written"):
        LockFile(tmp_path / "file" / "lock", "nodes.n.state_dir").take()
