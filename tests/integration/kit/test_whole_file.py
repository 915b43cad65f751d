"""A file is replaced as a whole, or stays as it was."""

import stat
from pathlib import Path

import pytest

from services.kit.whole_file import replacing


def test_a_file_is_the_old_one_until_the_new_one_is_whole(tmp_path: Path) -> None:
    """A reader within the block sees what was there; after it, the new content with its mode."""
    path = tmp_path / "folder/file"
    with replacing(path, mode=0o600) as draft:
        draft.write_text("first")
    with replacing(path, mode=0o600, durable=True) as draft:
        draft.write_text("second")
        assert path.read_text() == "first"
    assert path.read_text() == "second"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_fails_leaves_the_file_and_no_draft(tmp_path: Path) -> None:
    """An error in the block reaches the caller; nothing but the old file is in the folder."""
    path = tmp_path / "file"
    path.write_text("first")
    with pytest.raises(UnicodeEncodeError), replacing(path) as draft:
        draft.write_text("sec\ud800", encoding="utf-8")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "first"


def test_a_draft_of_a_process_that_died_lends_its_permissions_to_no_other(tmp_path: Path) -> None:
    """A draft that was left behind, readable by all, is not written into."""
    path = tmp_path / "key"
    path.with_name("key.draft").touch(0o666)
    with replacing(path, mode=0o600) as draft:
        assert stat.S_IMODE(draft.stat().st_mode) == 0o600
        draft.write_text("secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
