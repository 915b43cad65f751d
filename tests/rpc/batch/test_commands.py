"""`cinquefoil batch`, by gRPC, on a batch service beside a router with a scripted worker."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from services.kit.net import free_port
from tests.support.batch_service import jsonl, row, serving_batches, settings
from tests.support.cli.fake_services import cinquefoil
from tests.support.router.router_service import computed, running


@pytest.fixture
async def config(tmp_path: Path) -> AsyncIterator[Path]:
    """The file of a deployment that runs."""
    section = settings(tmp_path, listen=f"127.0.0.1:{free_port()}")
    sections = {"batch": section.model_dump(mode="json", exclude_unset=True)}
    async with running(http_listen=f"127.0.0.1:{free_port()}", sections=sections) as world:
        await world.route(await world.worker("a", computed))
        file = tmp_path / "cinquefoil.yaml"
        file.write_text(yaml.safe_dump(world.made.model_dump(mode="json", exclude_unset=True)))
        async with serving_batches(world.made):
            yield file


async def command(config: Path, *words: str) -> tuple[int, str]:
    found = await cinquefoil("batch", *words, "--config", config, columns=100)
    return found.status, found.out + found.err


async def test_a_file_is_submitted_watched_listed_and_fetched(config: Path, tmp_path: Path) -> None:
    """The whole course on a terminal, with a bad line in it."""
    file = tmp_path / "in.jsonl"
    file.write_bytes(jsonl([row(0), b"{", row(2)]))
    status, said = await command(config, "submit", str(file), "--within", "4h", "--watch")
    batch = said.splitlines()[0]
    listed = await command(config, "list")
    shown = await command(config, "show", batch, "--json")
    out = tmp_path / "out.jsonl"
    fetched = await command(config, "results", batch, "--out", str(out))

    assert status == 0
    assert "completed: 2 of 3 answered, 1 failed" in said
    assert "2/3" in listed[1]
    assert json.loads(shown[1])["window"] in {"14400s", 14400.0}
    assert fetched[0] == 0
    assert {json.loads(each)["custom_id"] for each in out.read_text().splitlines()} == {
        "r0",
        "",
        "r2",
    }


def elsewhere(config: Path, file: Path) -> Path:
    """Write the same deployment with a batch service that is not there."""
    document = yaml.safe_load(config.read_text())
    document["batch"]["listen"] = f"127.0.0.1:{free_port()}"
    file.write_text(yaml.safe_dump(document))
    return file


async def test_status_names_a_batch_service_that_is_away(config: Path, tmp_path: Path) -> None:
    """An answer of the router points here: the page says whether the batch service is there."""
    here = await cinquefoil("status", "--config", config)
    away = await cinquefoil("status", "--config", elsewhere(config, tmp_path / "other.yaml"))

    assert "batch at" not in here.out + here.err
    assert "batch at" in away.out + away.err


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (b"{}\n", (), 'no "url"'),
        (b"", (), 'no "url"'),
        (b"x\n", (), "no JSON object"),
        (jsonl([row(0)]), ("--within", "2h"), "completion_window: must be one of 1h, 4h, 24h, 72h"),
        (jsonl([row(0)]), ("--within", "soon"), "--within"),
    ],
)
async def test_what_cannot_be_submitted_is_one_sentence(
    config: Path, tmp_path: Path, text: bytes, words: tuple[str, ...], message: str
) -> None:
    """A wrong file or window is named, and no batch begins."""
    file = tmp_path / "in.jsonl"
    file.write_bytes(text)
    status, said = await command(config, "submit", str(file), *words)

    assert status != 0
    assert message in " ".join(said.split())
    assert "No batch yet" in (await command(config, "list"))[1]
