"""Batches from an unmodified OpenAI client, answered by a real router with scripted workers."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types import FileObject

from cinquefoil.gpuagent.v1 import worker_pb2
from services.kit.net import free_port
from tests.support.batch_service import (
    INFER,
    deployment_of,
    ended,
    jsonl,
    lines_of,
    row,
    serving_batches,
    settings,
    until,
)
from tests.support.router.router_service import World, computed, running


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """A router with HTTP, and one worker that sums rows."""
    async with running(http_listen=f"127.0.0.1:{free_port()}", max_queue=50) as world:
        await world.route(await world.worker("a", computed))
        yield world


@pytest.fixture
async def client(world: World, tmp_path: Path) -> AsyncIterator[AsyncOpenAI]:
    """An unmodified client of a batch service before it."""
    async with serving_batches(deployment_of(world, settings(tmp_path))) as client:
        yield client


async def submitted(client: AsyncOpenAI, lines: list[Any], **given: Any) -> Any:
    file = await client.files.create(file=("in.jsonl", jsonl(lines)), purpose="batch")
    return await begun(client, file.id, **given)


async def begun(client: AsyncOpenAI, file: str, **given: Any) -> Any:
    fields: dict[str, Any] = {"endpoint": INFER, "completion_window": "24h", **given}
    return await client.batches.create(input_file_id=file, **fields)


async def test_each_line_has_its_answer_in_the_order_of_the_file(client: AsyncOpenAI) -> None:
    """Upload, batch, counts, output file: as OpenAI's own."""
    lines = [row(number, (number, 0, 0, 1)) for number in range(300)]
    batch = await submitted(client, lines, metadata={"for": "ada"})
    assert batch.status == "validating"
    done = await ended(client, batch.id)
    found = await lines_of(client, done.output_file_id)

    assert (done.status, done.error_file_id) == ("completed", None)
    assert done.request_counts.model_dump() == {"total": 300, "completed": 300, "failed": 0}
    assert done.metadata == {"for": "ada"}
    assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at
    assert [each["custom_id"] for each in found] == [f"r{number}" for number in range(300)]
    sums = [each["response"]["body"]["outputs"][0]["data"][0] for each in found]
    assert sums == [number + 1.0 for number in range(300)]
    assert {each["response"]["status_code"] for each in found} == {200}


async def test_bad_lines_are_in_the_error_file_with_their_cause(client: AsyncOpenAI) -> None:
    """Each form of a bad line costs that line only; an error of the server is passed on whole."""
    lines = [
        row(0),
        b"",
        b"{not json",
        {**row(2), "custom_id": ""},
        {**row(3), "url": "/v1/completions"},
        {**row(4), "method": "GET"},
        {**row(5), "body": []},
        row(0),
        row(7, (1.0,)),
        row(9, (float("nan"), 0, 0, 0)),
        row(8),
    ]
    done = await ended(client, (await submitted(client, lines)).id)
    good = await lines_of(client, done.output_file_id)
    bad = await lines_of(client, done.error_file_id)

    assert done.status == "completed"
    assert done.request_counts.model_dump() == {"total": 10, "completed": 2, "failed": 8}
    assert [each["custom_id"] for each in good] == ["r0", "r8"]
    assert [each["error"] and each["error"]["code"] for each in bad] == [
        "invalid_json_line",
        "invalid_custom_id",
        "mismatched_url",
        "invalid_method",
        "invalid_body",
        "duplicate_custom_id",
        None,
        "invalid_json_line",
    ]
    places = [int(each["id"].rpartition("_")[2]) for each in bad]
    assert places == list(range(3, 11))  # lines of the file: the blank one is no request
    assert bad[-2]["response"]["status_code"] == 400
    assert "shape" in str(bad[-2]["response"]["body"])


@pytest.mark.parametrize(
    ("content", "code"),
    [(b"", "empty_file"), (b"\nnonsense\n", "invalid_json_line"), (b"\n \n", "empty_file")],
)
async def test_a_file_without_a_request_fails_with_the_line(
    client: AsyncOpenAI, content: bytes, code: str
) -> None:
    """Nothing is sent, and the batch says why."""
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = await begun(client, file.id)
    done = await ended(client, batch.id)

    assert done.status == "failed"
    assert done.errors.data[0].code == code
    assert done.errors.data[0].line in (None, 2)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"endpoint": "/v1/audio"}, "endpoint"),
        ({"completion_window": "2h"}, "completion_window"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "metadata"),
    ],
)
async def test_what_cannot_be_submitted_is_refused_by_name(
    client: AsyncOpenAI, given: dict[str, Any], word: str
) -> None:
    """400 with the field and what is allowed; no batch is made."""
    with pytest.raises(openai.BadRequestError) as found:
        await submitted(client, [row(0)], **given)

    assert word in found.value.message
    assert not [each async for each in client.batches.list()]


async def test_files_are_listed_read_and_deleted(client: AsyncOpenAI) -> None:
    """The whole Files API; one that a batch reads stays until that has ended."""
    made = [
        await client.files.create(file=(f"{n}.jsonl", jsonl([row(n)])), purpose="batch")
        for n in range(3)
    ]
    listed = [each.id async for each in client.files.list(limit=2)]
    for limit in (f"000000000{'9' * 12}", f"000000000{'9' * 5000}"):
        with pytest.raises(openai.BadRequestError, match="limit: must be 1 to 10000"):
            await client.files.list(extra_query={"limit": limit})
    content = await client.files.content(made[0].id)
    gone = await client.files.delete(made[0].id)
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(made[0].id)

    assert listed == [each.id for each in reversed(made)]
    assert content.content == jsonl([row(0)])
    assert (gone.deleted, made[0].filename, made[0].bytes) == (
        True,
        "0.jsonl",
        len(content.content),
    )


async def test_a_purpose_that_is_none_leaves_no_file(client: AsyncOpenAI) -> None:
    """The form's parts come in any order: content that was taken is deleted again."""
    with pytest.raises(openai.BadRequestError, match="purpose"):
        await client.files.create(file=("a", b"{}"), purpose="fine-tune")

    assert not [each async for each in client.files.list()]


async def test_a_cancelled_batch_keeps_what_was_answered(world: World, tmp_path: Path) -> None:
    """Lines in flight end, no other begins, and the output has each answered line once."""
    seen: list[int] = []

    def slow(work: worker_pb2.Work) -> worker_pb2.Result | None:
        seen.append(work.id)
        return computed(work) if len(seen) <= 20 else None  # the rest is never answered

    async with running(
        http_listen=f"127.0.0.1:{free_port()}", max_queue=50, default_timeout_s=2.0
    ) as own:
        await own.route(await own.worker("a", slow))
        async with serving_batches(deployment_of(own, settings(tmp_path))) as client:
            batch = await submitted(client, [row(number) for number in range(500)])
            await until(client, batch.id, lambda found: found.request_counts.completed >= 10)
            cancelling = await client.batches.cancel(batch.id)
            done = await ended(client, batch.id)
            found = await lines_of(client, done.output_file_id)

    assert cancelling.status == "cancelling"
    assert done.status == "cancelled"
    assert len(found) == done.request_counts.completed >= 10
    assert max(Counter(each["custom_id"] for each in found).values()) == 1


async def test_a_window_that_ends_says_so_of_each_line(world: World, tmp_path: Path) -> None:
    """`batch_expired` in the error file; answered lines stay."""
    batch_settings = settings(tmp_path)
    silent = deployment_of(
        world, batch_settings.model_copy(update={"router_url": "http://127.0.0.1:9"})
    )
    async with serving_batches(silent) as client:
        batch = await submitted(client, [row(number) for number in range(100)])
        await until(client, batch.id, lambda found: found.status != "validating")
    with sqlite3.connect(batch_settings.database) as database:  # two days pass
        database.execute("UPDATE batches SET created_s = created_s - 172800")
    async with serving_batches(silent) as client:
        done = await ended(client, batch.id)
        found = await lines_of(client, done.error_file_id)

    assert (done.status, done.request_counts.failed) == ("expired", 100)
    assert {each["error"]["code"] for each in found} == {"batch_expired"}


async def test_a_service_that_ends_goes_on_where_it_was(world: World, tmp_path: Path) -> None:
    """Ended again and again while lines are answered: each has one result, none is lost."""
    section = deployment_of(world, settings(tmp_path, max_in_flight=8))
    async with serving_batches(section) as client:
        batch = await submitted(client, [row(n, (n, 0, 0, 0)) for n in range(1000)])
    for _ in range(4):
        async with serving_batches(section):
            await asyncio.sleep(0.3)
    async with serving_batches(section) as client:
        done = await ended(client, batch.id)
        found = await lines_of(client, done.output_file_id)

    assert done.request_counts.model_dump() == {"total": 1000, "completed": 1000, "failed": 0}
    sums = [each["response"]["body"]["outputs"][0]["data"][0] for each in found]
    assert sums == [float(n) for n in range(1000)]


async def test_a_router_passes_files_and_batches_on(tmp_path: Path) -> None:
    """One address for chats and batches; a caller's files are its own by either address."""
    section = settings(tmp_path)
    async with running(
        http_listen=f"127.0.0.1:{free_port()}", sections={"batch": section.model_dump()}
    ) as world:
        await world.route(await world.worker("a", computed))
        url = f"http://{world.http}/v1"
        async with AsyncOpenAI(base_url=url, api_key="-", max_retries=0) as routed:
            async with serving_batches(deployment_of(world, section)) as direct:
                batch = await submitted(routed, [row(number) for number in range(10)])
                done = await ended(routed, batch.id)
                found = await lines_of(direct, done.output_file_id)
                for number in range(40):  # a list that is long enough to be compressed
                    await routed.files.create(file=(f"{number}", b"{}"), purpose="batch")
                listed = [each.filename async for each in routed.files.list(limit=100)]
                with pytest.raises(openai.BadRequestError, match="endpoint"):
                    await submitted(routed, [row(0)], endpoint="/v1/none")
            with pytest.raises(openai.InternalServerError, match="batch service does not answer"):
                await routed.batches.list()

    assert (done.status, len(found)) == ("completed", 10)
    assert listed[:40] == [str(number) for number in reversed(range(40))]


async def test_one_caller_has_a_bounded_share_of_disk_and_service(
    world: World, tmp_path: Path
) -> None:
    """Files and batches beyond the limits are refused by the setting's name, before they cost."""
    section = settings(tmp_path, max_stored_mib=1.0, max_open_batches=2)
    section = section.model_copy(update={"router_url": "http://127.0.0.1:9"})
    async with serving_batches(deployment_of(world, section)) as client:
        for _ in range(2):
            await submitted(client, [row(0)])
        with pytest.raises(openai.RateLimitError, match="max_open_batches"):
            await submitted(client, [row(0)])
        with pytest.raises(openai.RateLimitError, match="max_stored_mib"):
            await client.files.create(file=("big", b" " * 2**20), purpose="batch")
        assert len([each async for each in client.files.list()]) == 3
        several = (
            client.files.create(file=("part", b" " * 2**18), purpose="batch") for _ in range(8)
        )
        refused = await asyncio.gather(*several, return_exceptions=True)
        found = [each async for each in client.files.list()]

        assert sum(each.bytes for each in found) <= 2**20, "each was compared with what is whole"
        assert all(isinstance(each, openai.RateLimitError | FileObject) for each in refused)
        for each in found[:-3]:
            await client.files.delete(each.id)
    assert len([*(tmp_path / "files").iterdir()]) == 3, "what was refused left nothing behind"


async def test_a_batch_whose_file_is_gone_fails_and_says_so(world: World, tmp_path: Path) -> None:
    """It neither waits for ever nor holds up others."""
    section = settings(tmp_path)
    async with serving_batches(deployment_of(world, section)) as client:
        file = await client.files.create(file=("in", jsonl([row(0)])), purpose="batch")
        (tmp_path / "files" / file.id).unlink()
        gone = await begun(client, file.id)
        other = await submitted(client, [row(1)])
        failed, done = await ended(client, gone.id), await ended(client, other.id)

    assert (failed.status, failed.errors.data[0].code) == ("failed", "input_file_gone")
    assert done.status == "completed"


DISPOSITION = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n'
FORMS = {
    "a long header of a part": b"--x\r\nX: " + b"a" * 2**20 + b"\r\n\r\n{}\r\n--x--\r\n",
    "many headers of a part": b"--x\r\n" + b"X: a\r\n" * 10_000 + b"\r\n{}\r\n--x--\r\n",
    "a header without a name": b"--x\r\n:::\r\n\r\n{}\r\n--x--\r\n",
    "a long line before the first part": b"a" * 2**20,
    "many lines before the first part": b"a\r\n" * 2000 + DISPOSITION + b"\r\n{}\r\n--x--\r\n",
    "no end": DISPOSITION + b"\r\n" + b"a" * 1000,
    "a second part that is damaged": DISPOSITION + b"\r\n{}\r\n--x\r\n:::\r\n\r\n",
}


async def test_a_damaged_form_is_the_client_s_fault_and_keeps_no_file(client: AsyncOpenAI) -> None:
    """Each was HTTP 500, or held the event loop: 3 MB of lines before the first part for 8 s."""
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    async with httpx.AsyncClient(base_url=str(client.base_url), headers=headers) as http:
        answers = [await http.post("/files", content=form) for form in FORMS.values()]
    files = await client.files.list()

    assert [answer.status_code for answer in answers] == [400] * len(FORMS)
    assert files.data == []
