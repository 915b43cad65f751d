"""The profiler's logbook over interruptions."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gpuagent.profiling.profiler.logbook import opened
from services.kit.errors import FailedPrecondition
from services.kit.profiles.core.measurement import Fingerprint, Measurement

MACHINE = Fingerprint("t4", "Tesla T4", "580.95.05", "13.0", "1.31.0", measured_on="2026-11-21")
ROWS = [
    Measurement("t4", "whole", size, 1, latency_s=0.1 * size, energy_j=1.0, batches=9)
    for size in (1, 2, 4)
]


def written(path: Path) -> Path:
    with opened(path, MACHINE, resume=False) as book:
        for row in ROWS:
            book.write(row)
    return path


def test_a_resumed_book_knows_what_was_measured_and_since_when(tmp_path: Path) -> None:
    path = written(tmp_path / "new" / "book.jsonl")
    later = replace(MACHINE, measured_on="2026-12-24")
    with opened(path, later, resume=True) as book:
        assert book.measurements == ROWS
        assert book.fingerprint == MACHINE
        book.write(replace(ROWS[0], batch_size=8))
    with opened(path, later, resume=True) as book:
        assert [row.batch_size for row in book.measurements] == [1, 2, 4, 8]


def test_a_book_is_not_overwritten_unasked(tmp_path: Path) -> None:
    path = written(tmp_path / "book.jsonl")
    with (
        pytest.raises(FailedPrecondition, match="holds 3 measurements"),
        opened(path, MACHINE, resume=False),
    ):
        pass
    with opened(path, MACHINE, resume=True) as book:
        assert len(book.measurements) == 3


def test_measurements_of_two_machines_are_not_mixed(tmp_path: Path) -> None:
    path = written(tmp_path / "book.jsonl")
    other = replace(MACHINE, driver="999.1")
    with (
        pytest.raises(FailedPrecondition, match=r"driver '580.95.05', here '999.1'"),
        opened(path, other, resume=True),
    ):
        pass


@given(st.integers(0, 2000))
def test_whatever_byte_the_power_failed_at_whole_lines_are_kept(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    """Lines written after the broken one are whole, too."""
    path = written(tmp_path_factory.mktemp("torn") / "book.jsonl")
    data = path.read_bytes()
    kept = data[: min(cut, len(data))]
    path.write_bytes(kept)
    whole = kept.count(b"\n")
    with opened(path, MACHINE, resume=True) as book:
        assert book.measurements == ROWS[: max(whole - 1, 0)]
        book.write(ROWS[2])
    with opened(path, MACHINE, resume=True) as book:
        assert book.measurements == [*ROWS[: max(whole - 1, 0)], ROWS[2]]


@pytest.mark.parametrize("text", ["{}\n", "no json\n", '{"version": 9}\n', "[]\n"])
def test_a_file_that_is_not_a_logbook_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "book.jsonl"
    path.write_text(text)
    with (
        pytest.raises(FailedPrecondition, match=r"book\.jsonl is"),
        opened(path, MACHINE, resume=True),
    ):
        pass
    assert path.read_text() == text
