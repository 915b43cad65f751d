"""Files of models by path or URI: what a deployment file may say of them."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from services.kit.config import ModelCache, Variant
from services.kit.config.loader import resolved

DIGEST = "AB" * 32
PROFILE = {"kind": "analytic", "gmacs_per_item": 1.0}


def variant(**settings: Any) -> Variant:
    return Variant.model_validate({"accuracy": 0.9, "profile": PROFILE, **settings})


@pytest.mark.parametrize(
    "uri",
    [
        "file:///srv/net.onnx",
        "https://models.example/net.onnx",
        "http://127.0.0.1:8080/net.onnx",
        "s3://bucket/net.onnx",
        "gs://bucket/net.onnx",
        "hf://org/repo/net.onnx",
    ],
)
def test_a_file_by_uri_lies_under_its_digest(uri: str) -> None:
    found = variant(uri=uri, sha256=DIGEST)

    assert ModelCache(folder=Path("c")).path(found) == Path("c", f"{DIGEST.lower()}.onnx")
    assert [where for where, _ in found.loaded()] == [("uri",)]


def test_a_variant_without_a_file_has_none_once_paths_are_resolved() -> None:
    """It once got the deployment file's folder: `model_dump` of it could not be read again."""
    runtime = {"kind": "generative", "resource": "p/f", "sha256": DIGEST}
    found = resolved(variant(runtime=runtime), Path("/etc/deployment"))

    assert [*found.loaded()] == []
    assert Variant.model_validate(found.model_dump(exclude_unset=True)) == found


def test_stages_have_files_by_uri_too() -> None:
    stages = [{"uri": "s3://b/1.onnx", "sha256": DIGEST}, "two.onnx"]

    assert [bool(each.uri) for _, each in variant(stages=stages).loaded()] == [True, False]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"uri": "https://h/n.onnx"}, "sha256: required with uri"),
        ({"uri": "https://h/n.onnx", "sha256": DIGEST, "file": "n.onnx"}, "either uri or file"),
        ({"uri": "oci://h/n.onnx", "sha256": DIGEST}, "must begin with one of file:"),
        ({"uri": "simplecache::s3://b/n.onnx", "sha256": DIGEST}, "must begin with one of"),
        ({"uri": "https://h/../n.onnx", "sha256": DIGEST}, "must name a file"),
        ({"uri": "https:///n.onnx", "sha256": DIGEST}, "must name a file"),
        ({"uri": "file://h/n.onnx", "sha256": DIGEST}, "must name a file"),
        ({"uri": "s3://bucket", "sha256": DIGEST}, "must name a file"),
        ({"sha256": DIGEST}, "file: required, or uri"),
        (
            {"file": "n.gguf", "runtime": {"kind": "generative", "sha256": DIGEST}},
            "runtime.sha256: of resource",
        ),
    ],
)
def test_what_names_no_file_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        variant(**settings)


@pytest.mark.parametrize(
    "uri",
    [
        "https://user:s3cret@models.example/net.onnx",
        "https://models.example/net.onnx?X-Amz-Signature=s3cret",
        "https://models.example/net.onnx#s3cret",
    ],
)
def test_a_uri_with_credentials_is_refused_and_not_repeated(uri: str) -> None:
    with pytest.raises(ValidationError) as refused:
        variant(uri=uri, sha256=DIGEST)

    (error,) = refused.value.errors()
    assert "must have no user, password, query or fragment" in error["msg"]
    assert "s3cret" not in error["msg"]
