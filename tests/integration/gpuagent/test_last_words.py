"""Reason of a worker's end, read from its log."""

from pathlib import Path

import pytest

from services.gpuagent.supervision.processes import last_words

LOADED = '{"event": "cannot load the model", "error": "the model\'s server ended with status 1"}'
LATER = '{"event": "the worker failed", "error": "the model\'s server ended with status 1"}'


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (f"No module named 'x'\n{LOADED}\n", "server ended with status 1: No module named 'x'"),
        (f'{{"event": "a", "error": "b"}}\n{LOADED}\n', "server ended with status 1"),
        (f"a prompt\n{LATER}\n", "server ended with status 1"),
        (f"{LOADED}\n", "server ended with status 1"),
        ("Killed\n", "Killed"),
        ("", ""),
    ],
)
def test_a_server_that_did_not_start_is_named_with_its_own_last_line(
    tmp_path: Path, log: str, words: str
) -> None:
    """Of one that served, nothing is repeated: a line of it may be a prompt."""
    file = tmp_path / "worker.log"
    file.write_text(log)

    assert last_words(file).endswith(words)
