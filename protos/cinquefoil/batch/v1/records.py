"""Messages of `cinquefoil.batch.v1` as frozen values; written by `make protos`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, UTC
from enum import IntEnum


class BatchState(IntEnum):
    """State of a batch, in OpenAI's words."""

    UNSPECIFIED = 0
    # Its file is being read.
    VALIDATING = 1
    # Its file has no request, or too many; `errors` says why.
    FAILED = 2
    # Lines wait or are being answered.
    IN_PROGRESS = 3
    # Every line has a result; the output files are being written.
    FINALIZING = 4
    COMPLETED = 5
    # Its window ended; lines without an answer are in the error file as `batch_expired`.
    EXPIRED = 6
    # Cancel was called; requests in flight end.
    CANCELLING = 7
    CANCELLED = 8

    @classmethod
    def _missing_(cls, value: object) -> "BatchState":
        """Return UNSPECIFIED for a value that only newer programs know."""
        return cls.UNSPECIFIED


@dataclass(frozen=True, slots=True)
class File:
    """A stored file.

    Attributes:
        id:
        owner: Identity of its owner.
        name:
        purpose: "batch" or "batch_output".
        size_bytes: Unit: bytes.
        created_at:
        expires_at: When it is deleted.
    """

    id: str = ""
    owner: str = ""
    name: str = ""
    purpose: str = ""
    size_bytes: int = 0
    created_at: datetime = datetime.fromtimestamp(0, UTC)
    expires_at: datetime = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True, order=True)
class BatchError:
    """A reason why a file cannot be answered.

    Attributes:
        code: A word for programs, such as "empty_file".
        message:
        line: From 1; 0: of no line.
    """

    code: str = ""
    message: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests of a file that are answered within a window.

    Attributes:
        id:
        owner: Identity of its owner.
        endpoint: Path that each line names, such as "/v1/chat/completions".
        model: Model of its requests; empty while the file is being read.
        input_file_id:
        output_file_id: Files of results: empty until there is one.
        error_file_id:
        window: Time within which it is to be answered.
        state:
        errors: Reasons for BATCH_STATE_FAILED.
        lines: Lines in all, and those with a result.
        completed:
        failed:
        metadata: The caller's own: at most 16 keys.
        created_at:
        in_progress_at: When each state began; unset: it did not.
        finalizing_at:
        ended_at:
        cancelling_at:
        prompt_tokens: Tokens of prompts and answers, as the answers state them. Unit: tokens.
        output_tokens:
        energy_j: Sums of the receipts of its answers. Units: J, gCO2e.
        carbon_gco2e:
    """

    id: str = ""
    owner: str = ""
    endpoint: str = ""
    model: str = ""
    input_file_id: str = ""
    output_file_id: str = ""
    error_file_id: str = ""
    window: timedelta = timedelta()
    state: BatchState = BatchState.UNSPECIFIED
    errors: tuple[BatchError, ...] = ()
    lines: int = 0
    completed: int = 0
    failed: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    created_at: datetime = datetime.fromtimestamp(0, UTC)
    in_progress_at: datetime | None = None
    finalizing_at: datetime | None = None
    ended_at: datetime | None = None
    cancelling_at: datetime | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    energy_j: float = 0.0
    carbon_gco2e: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class UploadHead:
    """The file that is uploaded.

    Attributes:
        name:
        purpose: Must be "batch".
    """

    name: str = ""
    purpose: str = ""
