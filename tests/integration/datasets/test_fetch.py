"""Data sets: the catalog, downloads that go on, and folders of machines without a network."""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.datasets.catalog import DataFile, Original, catalog
from services.datasets.conversions import Conversion
from services.datasets.fetch import copy, download, present
from services.kit.errors import FailedPrecondition, Unavailable
from tests.support.file_server import CUT, Site, file_server
from tests.support.paths import PUBLISHED

LINE = '{"a": 1}\n'
CONTENT = LINE.encode() * 2000


@pytest.fixture
def site() -> Iterator[Site]:
    """A server that answers, or breaks off as often as a test sets."""
    with file_server(CONTENT) as found:
        yield found


def a_file(
    site: Site, *, conversion: Conversion | None = None, content: bytes = CONTENT
) -> DataFile:
    """The site's file, as it is or converted into `content`."""
    digest, size = hashlib.sha256(content).hexdigest(), len(content)
    if conversion is None:
        return DataFile(path="set/f.jsonl", sha256=digest, size_bytes=size, url=site.url)
    original = Original(
        url=site.url, sha256=hashlib.sha256(CONTENT).hexdigest(), size_bytes=len(CONTENT)
    )
    return DataFile(
        path="set/f.jsonl",
        sha256=digest,
        size_bytes=size,
        originals=(original,),
        conversion=conversion,
    )


def fetched(file: DataFile, folder: Path) -> int:
    """Download a file; return how many bytes progress counted."""
    counts: list[int] = []
    with httpx.Client(trust_env=False) as http:
        download(file, folder, http, counts.append)
    return sum(counts)


@pytest.mark.parametrize("honours_ranges", [True, False])
def test_a_download_goes_on_where_it_stopped(
    site: Site, tmp_path: Path, honours_ranges: bool
) -> None:
    """By Range; a server that knows no ranges sends all of it again, and the file is right."""
    site.cuts, site.honours_ranges = 1, honours_ranges
    file = a_file(site)
    fetched(file, tmp_path)
    assert site.ranges == ["", f"bytes={CUT}-"]
    assert present(file, tmp_path)


def test_a_download_that_fails_is_continued_by_the_next(site: Site, tmp_path: Path) -> None:
    """The error says how far it came; the next fetch requests the rest only."""
    site.cuts = 3
    file = a_file(site, content=CONTENT)
    with pytest.raises(Unavailable, match=f"goes on from .* of {len(CONTENT)} bytes"):
        fetched(file, tmp_path)
    assert not present(file, tmp_path)
    fetched(file, tmp_path)
    assert site.ranges[-1].startswith("bytes=")
    assert present(file, tmp_path)


def test_what_the_catalog_does_not_list_gets_no_name(site: Site, tmp_path: Path) -> None:
    """Other content of the same length, and more content than listed, are refused by SHA-256."""
    file = a_file(site)
    for content in (CONTENT[:-1] + b"!", CONTENT + b"!"):
        site.content = content
        with pytest.raises(FailedPrecondition):
            fetched(file, tmp_path)
        assert not list((tmp_path / "set").glob("*")), "nothing under the file's name"
        for part in (tmp_path / ".parts").glob("*"):
            part.unlink()


def test_a_published_file_is_converted(site: Site, tmp_path: Path) -> None:
    """Both are checked: the original, and what it becomes."""
    file = a_file(site, conversion="compact_json_lines", content=CONTENT.replace(b" ", b""))
    assert fetched(file, tmp_path) == len(CONTENT), "progress counts what is downloaded"
    assert (tmp_path / file.path).read_text() == LINE.replace(" ", "") * 2000


def test_a_folder_serves_a_machine_without_a_network(site: Site, tmp_path: Path) -> None:
    """A file is copied if its content is right, refused if not, and a missing one is reported."""
    file, source, folder = a_file(site), tmp_path / "stick", tmp_path / "data"
    assert not copy(file, source, folder)
    (source / "set").mkdir(parents=True)
    (source / file.path).write_bytes(CONTENT + b"!")
    with pytest.raises(FailedPrecondition, match="SHA-256"):
        copy(file, source, folder)
    assert not present(file, folder)
    (source / file.path).write_bytes(CONTENT)
    assert copy(file, source, folder)
    assert present(file, folder)
    assert site.ranges == []


def test_the_catalog_names_one_version_of_each_file() -> None:
    """Addresses contain a commit; paths begin with their data set and are unique."""
    paths = [file.path for found in catalog().values() for file in found.files]
    assert len(paths) == len(set(paths))
    for name, found in catalog().items():
        for file in found.files:
            assert file.path.startswith(f"{name}/")
            for original in file.downloads:
                assert re.match(r"https://.+/[0-9a-f]{40}/", original.url), original.url


def test_the_command_takes_published_files_from_a_folder(tmp_path: Path) -> None:
    """The command prints their number and licence; every set that is here is the catalog's."""
    there = [name for name in catalog() if (PUBLISHED / name).is_dir()]
    if "infadapter" not in there:
        pytest.skip(f"no published data in {PUBLISHED}")
    words = ["data", "fetch", "infadapter", "--folder", str(tmp_path), "--from", str(PUBLISHED)]
    answer = CliRunner().invoke(app, words)
    assert answer.exit_code == 0, answer.output
    assert "infadapter: 2 of 2 files" in answer.output
    assert "licence: none stated" in answer.output
    files = [file for name in there for file in catalog()[name].files]
    assert [file.path for file in files if not present(file, PUBLISHED)] == []


def test_the_command_names_what_a_folder_lacks(tmp_path: Path) -> None:
    """An empty folder has none of them; an unknown name lists those that there are."""
    words = ["data", "fetch", "--folder", str(tmp_path / "data"), "--from", str(tmp_path)]
    answer = CliRunner().invoke(app, [*words, "infadapter"])
    assert answer.exit_code == 1
    assert "lacks infadapter/capacity_result_Feb_21.csv" in answer.output
    unknown = CliRunner().invoke(app, [*words, "imagenet"])
    assert "no data set 'imagenet'; there are parvagpu, clover" in unknown.output
