"""The cache's file: what survives, what does not, and who may read it."""

import random
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from services.kit.config import PromptCache
from services.kit.errors import FailedPrecondition, Unavailable
from services.predictor.adapters.cache_store import CacheStore
from services.predictor.core.cache.semantic_cache import SemanticCache

SIZE = 8
MARK = np.linspace(-1, 1, SIZE).astype(np.float32)


def cache(*models: str) -> SemanticCache:
    return SemanticCache(models, PromptCache(max_entries=10, max_mib=1), SIZE)


def saved(path: Path, known: SemanticCache) -> None:
    store = CacheStore.opened(path, "e")
    store.save(known.take_changes(), {"m": b"state"})
    store.close()


def restored(path: Path, *models: str) -> SemanticCache:
    known = cache(*models)
    store = CacheStore.opened(path, "e")
    store.restore(known)
    store.close()
    return known


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "predictor.sqlite3"


def test_entries_vectors_histories_and_the_secret_survive(path: Path) -> None:
    known = cache("m")
    known.of["m"].learn(b"k" * 16, 100, 5.0, MARK)
    known.of["m"].learn(b"l" * 16, 7, 6.0)
    first = CacheStore.opened(path, "e")
    first.save(known.take_changes(), {"m": b"state"})
    secret = first.secret
    first.close()

    again, second = cache("m"), CacheStore.opened(path, "e")
    second.restore(again)

    assert second.secret == secret
    assert second.histories() == {"m": b"state"}
    assert again.of["m"].exact(b"l" * 16, 7.0) is not None
    hit = again.of["m"].near(MARK, 7.0)
    assert hit is not None
    assert (hit.key, hit.lengths.mean_tokens) == (b"k" * 16, 100)
    second.close()


def test_only_the_owner_may_read_the_file_and_its_journal(path: Path) -> None:
    """A file that existed with a wider permission is closed, too."""
    path.parent.mkdir()
    path.touch(0o644)
    modes = []
    store = CacheStore.opened(path, "e")
    database = store._database
    database.execute("BEGIN")
    database.execute("INSERT INTO history (model, state) VALUES ('m', x'00')")
    modes = [stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()]
    database.execute("COMMIT")
    store.close()

    assert set(modes) == {0o600}


def test_nothing_of_what_was_forgotten_is_left_in_the_file(path: Path) -> None:
    known = cache("m")
    known.of["m"].learn(b"secret-prompt-ky", 100, 5.0, MARK)
    saved(path, known)
    assert b"secret-prompt-ky" in path.read_bytes()

    known.forget("m", float("inf"))
    saved(path, known)

    assert b"secret-prompt-ky" not in path.read_bytes()
    assert len(restored(path, "m").of["m"]) == 0


def test_prompts_of_a_model_that_the_deployment_no_longer_names_are_deleted(path: Path) -> None:
    known = cache("m", "gone")
    known.of["m"].learn(b"k" * 16, 1, 1.0)
    known.of["gone"].learn(b"gone-gone-gone-g", 1, 1.0)
    saved(path, known)

    assert len(restored(path, "m").of["m"]) == 1
    assert b"gone-gone-gone-g" not in path.read_bytes()


@pytest.mark.parametrize("content", [b"no database at all" * 100, b"SQLite format 3\0garbage"])
def test_a_damaged_file_is_replaced(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)

    assert len(restored(path, "m").of["m"]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_damage_loses_the_cache_or_nothing(path: Path) -> None:
    """Bits flipped, pages zeroed, ends cut off: the same entries, or none; never other lengths."""
    known = cache("m")
    for number in range(6):
        known.of["m"].learn(bytes([number]) * 16, 100 + number, 5.0, MARK)
    saved(path, known)
    content, draw = path.read_bytes(), random.Random(5)
    found = set()
    for _ in range(40):
        start = draw.randrange(len(content))
        flipped = bytes([content[start] ^ 1 << draw.randrange(8)])
        damaged = draw.choice((content[:start], content[:start] + bytes(len(content) - start)))
        path.write_bytes(draw.choice((damaged, content[:start] + flipped + content[start + 1 :])))
        again = restored(path, "m")
        found.add(len(again.of["m"]))
        if len(again.of["m"]):
            hits = [again.of["m"].exact(bytes([number]) * 16, 7.0) for number in range(6)]
            assert [hit and hit.lengths.mean_tokens for hit in hits] == [*range(100, 106)]
        path.unlink()

    assert found == {0, 6}


def test_a_cache_of_before_there_were_checksums_is_read(path: Path) -> None:
    known = cache("m")
    known.of["m"].learn(b"k" * 16, 100, 5.0, MARK)
    saved(path, known)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for table in ("about", "history", "entry"):
            database.execute(f"ALTER TABLE {table} DROP COLUMN crc")
        database.execute("PRAGMA user_version = 1")

    assert len(restored(path, "m").of["m"]) == 1
    assert len(restored(path, "m").of["m"]) == 1


def test_a_disk_that_takes_no_file_is_no_reason_not_to_predict(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(Unavailable, match="cannot write"):
        CacheStore.opened(tmp_path / "file" / "cache.sqlite3", "e")


def test_vectors_of_another_embedder_are_not_compared(path: Path) -> None:
    known = cache("m")
    known.of["m"].learn(b"k" * 16, 100, 5.0, MARK)
    saved(path, known)

    store, again = CacheStore.opened(path, "other"), cache("m")
    store.restore(again)
    store.close()

    assert len(again.of["m"]) == 0


def test_a_file_that_another_process_holds_is_refused(path: Path) -> None:
    holder = CacheStore.opened(path, "e")
    with pytest.raises(FailedPrecondition, match="locked"):
        CacheStore.opened(path, "e")
    holder.close()


def test_a_save_that_fails_changes_nothing(path: Path) -> None:
    known = cache("m")
    known.of["m"].learn(b"k" * 16, 100, 5.0)
    store = CacheStore.opened(path, "e")
    store._database.execute(
        "CREATE TRIGGER full BEFORE INSERT ON history BEGIN SELECT RAISE(ABORT, 'disk full'); END"
    )
    with pytest.raises(sqlite3.Error, match="disk full"):
        store.save(known.take_changes(), {"m": b""})
    store.close()

    assert len(restored(path, "m").of["m"]) == 0
