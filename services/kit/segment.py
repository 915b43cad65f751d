"""Checks of names and segments that a peer sent."""

import re
from collections.abc import Iterable
from typing import Final

from cinquefoil.gpuagent.v1.records import SegmentSpec
from services.kit.errors import InvalidArgument
from services.kit.mig import GPUS_TOGETHER, WHOLE

_SEGMENT_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
_LONGEST_NAME: Final = 128
_LONGEST_TEXT: Final = 1000

MOST_BATCH: Final = 1024
"""Largest batch of a segment, items."""

MOST_PROCESSES: Final = 64
"""Most worker processes of a segment; MPS has 48 clients a GPU, 60 on the newest."""

_LIMITS: Final = {"batch_size": (1, MOST_BATCH), "processes": (1, MOST_PROCESSES), "stage": (0, 63)}


def plain(text: str) -> str:
    """Return what a peer says for a person: one line, at most 1,000 characters."""
    return "".join(each if each.isprintable() else " " for each in text[:_LONGEST_TEXT])


def whole_number(text: str, most: int) -> int | None:
    """Return the number that a text of others is, 0 to `most`, in the digits 0 to 9; else None.

    Python's own reader takes other digits too, and refuses thousands of them by another error.
    """
    plain_digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    return value if plain_digits and (value := int(text)) <= most else None


def some_of(names: Iterable[str], most: int = 20) -> str:
    """Return the first of some names in order for a message, and how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    return ", ".join(ordered[:most]) + more or "none"


def require_printable(where: str, *names: str) -> None:
    """Check names in a file of others: they are shown, logged, and written into other files.

    Raises:
        InvalidArgument: One has control characters, or separators other than spaces.
    """
    for name in names:
        if not name.isprintable():
            raise InvalidArgument(f"{plain(where)}: a name must be printable, got {name[:64]!a}")


def require_unicode(*texts: str) -> None:
    """Check texts that may be names of files: a document cannot have bytes that no text has.

    Raises:
        InvalidArgument: One is not Unicode.
    """
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"{text!r} is not Unicode: rename it") from error


def check_name(field: str, name: str) -> None:
    """Check a name that a peer sent: it is shown, logged and stored.

    Raises:
        InvalidArgument: It is empty, longer than 128 characters, or not printable.
    """
    if not name:
        raise InvalidArgument.at(field, "required")
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise InvalidArgument.at(
            field, f"must have 1..{_LONGEST_NAME} printable characters, got {name[:32]!r}"
        )


def gpus_of(spec: SegmentSpec) -> tuple[str, ...]:
    """Return the GPUs that a segment holds, or the one that it holds a slice of."""
    return (spec.gpu_uuid, *spec.peer_gpu_uuids)


def check_spec(spec: SegmentSpec) -> None:
    """Check a segment that a peer sent.

    Raises:
        InvalidArgument: A value that cannot be.
    """
    if not _SEGMENT_ID.fullmatch(spec.segment_id):  # files are named after it
        raise InvalidArgument.at(
            "spec.segment_id",
            f"letters, digits, '.', '_' and '-', at most 120, got {spec.segment_id!r}",
        )
    for name in ("model", "variant", "gpu_uuid"):
        check_name(f"spec.{name}", getattr(spec, name))
    if spec.peer_gpu_uuids:
        _check_peers(spec)
    for name, (least, most) in _LIMITS.items():
        if not least <= (value := getattr(spec, name)) <= most:
            raise InvalidArgument.at(f"spec.{name}", f"must be {least}..{most}, got {value}")
    if len(spec.limits) not in (0, spec.processes):
        raise InvalidArgument.at(
            "spec.limits", f"one per process, {spec.processes}, or none; got {len(spec.limits)}"
        )
    for limit in spec.limits:
        if not 1 <= limit.thread_percentage <= 100:
            raise InvalidArgument.at(
                "spec.limits.thread_percentage", f"must be 1..100, got {limit.thread_percentage}"
            )


def _check_peers(spec: SegmentSpec) -> None:
    where, gpus = "spec.peer_gpu_uuids", gpus_of(spec)
    for uuid in gpus:
        check_name(where, uuid)
    if len(gpus) not in GPUS_TOGETHER or len({*gpus}) < len(gpus):
        counts = ", ".join(map(str, GPUS_TOGETHER))
        raise InvalidArgument.at(where, f"a segment holds {counts} GPUs, each once")
    if spec.processes != 1 or spec.placement.profile != WHOLE:
        raise InvalidArgument.at(where, "a segment of several GPUs is one process on whole ones")
