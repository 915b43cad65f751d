"""`cinquefoil models fetch`: files of models by URI, in a cache of a bounded size."""

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from services.cli.main import app
from services.kit.config.loader import load
from services.kit.download import Source, client, complete
from services.kit.errors import Unavailable
from services.kit.proxies import VARIABLES
from tests.support.file_server import CUT, Site, file_server

CONTENT = bytes(range(256)) * 4096  # 1 MiB
DIGEST = sha256(CONTENT).hexdigest()


@pytest.fixture
def site() -> Iterator[Site]:
    with file_server(CONTENT) as found:
        yield found


def config(folder: Path, uri: str, digest: str = DIGEST, *, max_mib: float = 4.0) -> Path:
    """Write a deployment whose model `net` has one file by URI; return its path."""
    path = folder / "cinquefoil.yaml"
    variant = {
        "uri": uri,
        "sha256": digest,
        "accuracy": 0.9,
        "profile": {"kind": "analytic", "gmacs_per_item": 1.0},
    }
    document = {
        "version": "v1",
        "carbon": {"zones": {"Z": {"source": {"kind": "synthetic"}}}},
        "nodes": {"n": {"zone": "Z", "simulated": ["t4"]}},
        "models": {
            "net": {"slo": {"latency_s": 1.0}, "demand_rps": 1.0, "variants": {"v": variant}}
        },
        "model_cache": {"folder": "cache", "max_mib": max_mib},
    }
    path.write_text(yaml.safe_dump(document))
    return path


def fetch(path: Path) -> Result:
    found = CliRunner().invoke(app, ["models", "fetch", "--config", str(path)])
    assert "Traceback" not in found.output
    return found


def names(folder: Path) -> set[str]:
    """The cache's files, whole and partial, that are not empty."""
    return {
        each.relative_to(folder / "cache").as_posix()
        for each in (folder / "cache").rglob("*")
        if each.is_file() and each.name != ".lock" and each.stat().st_size
    }


def test_a_file_is_fetched_once_and_lies_where_agents_look_for_it(
    site: Site, tmp_path: Path
) -> None:
    path = config(tmp_path, site.url)
    first, second = fetch(path), fetch(path)

    deployment = load(path)
    file = deployment.path_of(deployment.models["net"].variants["v"])
    assert file.read_bytes() == CONTENT
    assert first.output.split(",")[0] == "net/v: fetched"
    assert second.output.split(",")[0] == "net/v: is here"
    assert len(site.ranges) == 1


def test_a_fetch_goes_on_where_the_one_before_was_cut(site: Site, tmp_path: Path) -> None:
    site.cuts = 3  # as often as one fetch tries
    path = config(tmp_path, site.url)
    first, second = fetch(path), fetch(path)

    assert first.exit_code == 1
    assert f"goes on from {3 * CUT} bytes" in first.output
    assert second.exit_code == 0
    assert site.ranges[-1] == f"bytes={3 * CUT}-"


def test_another_file_than_the_expected_one_is_not_kept(site: Site, tmp_path: Path) -> None:
    found = fetch(config(tmp_path, site.url, "0" * 64))

    assert found.exit_code == 1
    assert f"its SHA-256 is {DIGEST}" in found.output
    assert names(tmp_path) == set()


def test_a_damaged_file_is_fetched_again(site: Site, tmp_path: Path) -> None:
    path = config(tmp_path, site.url)
    fetch(path)
    (file,) = (tmp_path / "cache").glob(f"{DIGEST}.onnx")
    file.write_bytes(CONTENT[:-1])

    assert fetch(path).exit_code == 0
    assert file.read_bytes() == CONTENT


@pytest.mark.parametrize("announces", [True, False])
def test_what_exceeds_the_cache_is_not_written(site: Site, tmp_path: Path, announces: bool) -> None:
    """A length that is announced is refused at once; else what comes beyond the bound is."""
    site.announces = announces
    found = fetch(config(tmp_path, site.url, max_mib=0.5))

    assert found.exit_code == 1
    assert "model_cache.max_mib: 0.5 MiB have no room" in found.output
    written = sum(each.stat().st_size for each in (tmp_path / "cache/.parts").glob("*"))
    assert written == 0 if announces else written <= len(CONTENT) / 2


def test_a_redirect_leads_to_no_file(site: Site, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    site.redirect = secret.as_uri()
    found = fetch(config(tmp_path, site.url))

    assert found.exit_code == 1
    assert "redirected to file:, which is not followed" in found.output


def test_files_that_no_model_names_give_way_the_longest_unused_first(
    site: Site, tmp_path: Path
) -> None:
    """Two of 1.5 MiB are there, and 4 MiB are allowed: one goes."""
    (tmp_path / "cache").mkdir()
    for name, age_s in (("old", 2000), ("new", 1000)):
        file = tmp_path / "cache" / name
        file.write_bytes(bytes(3 << 19))
        os.utime(file, (file.stat().st_mtime - age_s,) * 2)
    fetch(config(tmp_path, site.url, max_mib=2.6))

    assert names(tmp_path) == {"new", f"{DIGEST}.onnx"}


def test_a_file_that_a_model_names_gives_way_to_none(site: Site, tmp_path: Path) -> None:
    path = config(tmp_path, site.url, max_mib=1.5)
    fetch(path)
    other = tmp_path / "other.onnx"
    other.write_bytes(CONTENT[::-1])
    document = yaml.safe_load(path.read_text())
    variants = document["models"]["net"]["variants"]
    digest = sha256(CONTENT[::-1]).hexdigest()
    variants["w"] = {**variants["v"], "uri": other.as_uri(), "sha256": digest}
    path.write_text(yaml.safe_dump(document))
    found = fetch(path)

    assert "net/v: is here" in found.output
    assert "net/w: model_cache.max_mib" in found.output
    assert names(tmp_path) == {f"{DIGEST}.onnx"}


def test_a_file_of_this_machine_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "net.onnx"
    source.write_bytes(CONTENT)

    assert fetch(config(tmp_path, source.as_uri())).exit_code == 0
    assert names(tmp_path) == {f"{DIGEST}.onnx"}


def test_an_object_of_a_store_is_read_from_where_a_part_ends(tmp_path: Path) -> None:
    """By fsspec, here with its store in memory; one that does not exist is said so."""
    import fsspec  # noqa: PLC0415 - takes 0.1 s, which each process that collects would pay

    fsspec.filesystem("memory").pipe("/models/net.onnx", CONTENT)
    part, came = tmp_path / "part", list[int]()
    part.write_bytes(CONTENT[:CUT])
    uri = "memory://models/net.onnx"
    complete(Source(uri, client()), part, DIGEST, lambda _: None, came.append)

    assert part.read_bytes() == CONTENT
    assert came[0] == CUT
    with pytest.raises(Unavailable, match="no such file"):
        complete(Source(f"{uri}.1", client()), part, DIGEST, lambda _: None, came.append)


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:1", "socks5://a:s3cret@c:1"])
def test_a_proxy_in_the_way_is_named_by_its_variable(
    proxy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is dead, and one of a kind that the client does not speak."""
    for name in (*VARIABLES, "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", proxy)

    said = fetch(config(tmp_path, "https://models.example/net.onnx"))

    assert said.exit_code != 0
    assert "https_proxy" in said.output
    assert "s3cret" not in said.output


def test_a_server_on_this_machine_is_called_past_every_proxy(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in VARIABLES:
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    assert fetch(config(tmp_path, site.url)).exit_code == 0
