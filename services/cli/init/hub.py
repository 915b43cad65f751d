"""ONNX files of the Hugging Face hub."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from services.kit import proxies
from services.kit.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    ServiceError,
    Unavailable,
)
from services.kit.package_data import require_sha256
from services.kit.segment import require_printable
from services.kit.units import BYTES_PER_MIB

MAX_MIB: Final = 20 * 1024
"""Maximum size of all files of a model, MiB."""

_NAME: Final = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w.-]+))?(?:/([\w./-]+\.onnx))?", re.ASCII)
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selection of files. Attributes: repository, revision (None: its newest), file (None: all)."""

    repository: str
    revision: str | None
    file: str | None

    @classmethod
    def parse(cls, text: str) -> Wanted | None:
        """Return the selection ORG/NAME[@REVISION][/FILE.onnx]; None: it has another form."""
        matched = _NAME.fullmatch(text)
        return cls(*matched.groups()) if matched else None


def download(wanted: Wanted, folder: Path, say: Callable[[str], object]) -> tuple[Path, ...]:
    """Download a repository's ONNX files, with their files of weights; return the ONNX files.

    Nothing else is downloaded, and no code of it is run. Files that are here already and have
    the right digest are kept.

    Args:
        wanted: The repository.
        folder: Its files go below it, into a folder of the repository's name.
        say: Receives the name of the download.

    Raises:
        FailedPrecondition: The hub's client is missing, or a file has not the digest of the hub.
        InvalidArgument: The repository has no ONNX file; the message says what it has.
        NotFound: There is no such repository, revision or file.
        ResourceExhausted: It is too large.
        Unavailable: The hub does not answer.
    """
    try:
        import huggingface_hub as hub  # noqa: PLC0415 - of the extra `uri`
        from huggingface_hub import errors  # noqa: PLC0415
        from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415
    except ImportError as error:
        raise FailedPrecondition(f"--hf: {error}; pip install 'cinquefoil[uri]'") from error
    disable_progress_bars()  # the terminal's line is the command's
    api = hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
    target = folder / wanted.repository.partition("/")[2]
    try:
        info = api.model_info(
            wanted.repository, revision=wanted.revision, files_metadata=True, timeout=_TIMEOUT_S
        )
        chosen = _chosen(wanted, info.siblings or [])
        _require_room(wanted, chosen, folder)
        for each in chosen:
            say(f"{each.rfilename}: {each.size / BYTES_PER_MIB:.3g} MiB from {wanted.repository}")
            path = api.hf_hub_download(
                wanted.repository, each.rfilename, revision=info.sha, local_dir=target
            )
            _verify(Path(path), each)
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise NotFound(
            f"--hf: {api.endpoint} has no {wanted.repository}"
            f"{f'@{wanted.revision}' if wanted.revision else ''}, or shows it to others only "
            "(HF_TOKEN)"
        ) from error
    except ServiceError:  # of the files found
        raise
    except Exception as error:  # errors of the hub's client share no base class
        why = f"{error}{proxies.note(api.endpoint)}"
        raise Unavailable(f"--hf: {wanted.repository} at {api.endpoint}: {why}") from error
    return tuple(target / each.rfilename for each in chosen if each.rfilename.endswith(".onnx"))


def in_order(files: Iterable[PurePosixPath]) -> list[PurePosixPath]:
    """Return a model's ONNX files by length of name: of `onnx`, optimum's folder, or of the top."""
    known = [each for each in files if each.suffix == ".onnx"]
    for place in (PurePosixPath("onnx"), PurePosixPath()):
        if found := [each for each in known if each.parent == place]:
            return sorted(found, key=lambda each: (len(each.stem), each.stem))
    return []


def _chosen(wanted: Wanted, siblings: Sequence[Any]) -> list[Any]:
    """Return a repository's ONNX files, each with its files of weights: `NAME.onnx_data`, ..."""
    require_printable(f"--hf: {wanted.repository}", *(each.rfilename for each in siblings))
    files = {PurePosixPath(each.rfilename): each for each in siblings}
    networks = in_order(files) if wanted.file is None else [PurePosixPath(wanted.file)]
    if not files.keys() >= set(networks):
        raise NotFound(f"--hf: {wanted.repository} has no {wanted.file}")
    if not networks:
        raise InvalidArgument(
            f"--hf: {wanted.repository} has no ONNX file; {_instead(wanted, files)}"
        )
    weights = [each for each in files if each.suffix != ".onnx"]
    return [
        files[path]
        for network in networks
        for path in (network, *(each for each in weights if _belongs(each, network)))
    ]


def _belongs(weights: PurePosixPath, network: PurePosixPath) -> bool:
    names = (f"{network.name}_data", f"{network.name}.data")
    return weights.parent == network.parent and weights.name.startswith(names)


def _instead(wanted: Wanted, files: Iterable[PurePosixPath]) -> str:
    gguf = sorted(str(each) for each in files if each.suffix == ".gguf")
    if gguf:
        return (
            f"it has {gguf[0]}, a language model: a variant with `uri: "
            f"hf://{wanted.repository}/{gguf[0]}` and `runtime: {{kind: generative}}`"
        )
    return (
        f"export one: optimum-cli export onnx --model {wanted.repository} FOLDER, then --hf FOLDER"
    )


def _require_room(wanted: Wanted, chosen: Sequence[Any], folder: Path) -> None:
    for each in chosen:
        if each.size is None or each.lfs is None:
            raise FailedPrecondition(
                f"--hf: {wanted.repository}: the hub names no SHA-256 of {each.rfilename}"
            )
    size_mib = sum(each.size for each in chosen) / BYTES_PER_MIB
    there = next(each for each in (folder, *folder.resolve().parents) if each.is_dir())
    free_mib = shutil.disk_usage(there).free / BYTES_PER_MIB
    if size_mib > min(MAX_MIB, free_mib):
        raise ResourceExhausted(
            f"--hf: {wanted.repository} has {size_mib:.0f} MiB of ONNX files; {there} has "
            f"{free_mib:.0f} MiB, and {MAX_MIB} MiB are the most: name one file, "
            f"--hf {wanted.repository}/{chosen[0].rfilename}"
        )


def _verify(path: Path, expected: Any) -> None:
    try:
        require_sha256(path, expected.lfs.sha256)
    except FailedPrecondition:
        path.unlink(missing_ok=True)  # a file that was changed on its way is not examined
        raise
