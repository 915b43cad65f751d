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
        id: Chosen by the service.
        owner: Identity of its owner.
        name: As its owner named it.
        purpose: "batch" or "batch_output".
        size_bytes: Unit: bytes.
        created_at: When it was stored.
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
        message: The fault, and what is allowed.
        line: From 1; 0: of no line.
    """

    code: str = ""
    message: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class BatchOutlook:
    """Expectation of a batch, by the planner's last decision.

    Attributes:
        done_by: When its model's waiting requests that are due no later than it will have been
            answered. Unset: not within 48 hours.
        late_requests: Requests of its model that will be late, of those due no later than it. 0:
            its window is kept.
        text: What is late and what would make it possible, or else when it runs, for people.
    """

    done_by: datetime | None = None
    late_requests: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests of a file that are answered within a window.

    Attributes:
        id: Chosen by the service.
        owner: Identity of its owner.
        endpoint: Path that each line names, such as "/v1/chat/completions".
        model: Model of its requests; empty while the file is being read.
        input_file_id: File of its requests.
        output_file_id: File of answers: empty until there is one.
        error_file_id: File of the results that are errors: empty until there is one.
        window: Time within which it is to be answered.
        state: State now.
        errors: Reasons for BATCH_STATE_FAILED.
        lines: Lines in all.
        completed: Lines with an answer.
        failed: Lines with an error.
        metadata: The caller's own: at most 16 keys.
        created_at: When it was submitted; its window begins then.
        in_progress_at: When its file was read; unset, as the next three: not yet.
        finalizing_at: When every line had a result.
        ended_at: When it ended.
        cancelling_at: When it was cancelled.
        prompt_tokens: Tokens of prompts, as the answers state them. Unit: tokens.
        output_tokens: Tokens of answers. Unit: tokens.
        energy_j: Attributed energy of its answers, by their receipts. Unit: J.
        carbon_gco2e: Attributed emissions of its answers. Unit: gCO2e.
        energy_marginal_j: Energy that its answers have added, by their receipts: what one request
            more takes beside others. Unit: J.
        carbon_marginal_gco2e: Emissions of that energy. Unit: gCO2e.
        outlook: What is expected of it. Unset: it has ended, or no planner has said anything.
        at_once_gco2e: Emissions, had its answers come when it began: `energy_marginal_j` at the
            intensity of that time. 0: not known. Unit: gCO2e.
        own_pool_gco2e: Emissions, had they come then on replicas of their own at the best batch. 0:
            not known. Unit: gCO2e.
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
    energy_marginal_j: float = 0.0
    carbon_marginal_gco2e: float = 0.0
    outlook: BatchOutlook | None = None
    at_once_gco2e: float = 0.0
    own_pool_gco2e: float = 0.0


@dataclass(frozen=True, slots=True, order=True)
class UploadHead:
    """The file that is uploaded.

    Attributes:
        name: Name of the file, for people.
        purpose: Must be "batch".
    """

    name: str = ""
    purpose: str = ""


@dataclass(frozen=True, slots=True, order=True)
class WaitingAccount:
    """Sums over the batches of one owner and model; what they mean is in `Batch`.

    Attributes:
        owner: Identity of the owner.
        model: The model.
        batches: Batches.
        completed: Requests with an answer.
        failed: Requests with an error.
        prompt_tokens: Tokens of prompts. Unit: tokens.
        output_tokens: Tokens of answers. Unit: tokens.
        energy_j: Attributed energy. Unit: J.
        carbon_gco2e: Attributed emissions. Unit: gCO2e.
        energy_marginal_j: Energy that the answers have added. Unit: J.
        carbon_marginal_gco2e: Emissions of that energy. Unit: gCO2e.
        at_once_gco2e: Emissions, had the answers come when the batches began. Unit: gCO2e.
        own_pool_gco2e: Emissions, had they come then on replicas of their own. Unit: gCO2e.
    """

    owner: str = ""
    model: str = ""
    batches: int = 0
    completed: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    energy_j: float = 0.0
    carbon_gco2e: float = 0.0
    energy_marginal_j: float = 0.0
    carbon_marginal_gco2e: float = 0.0
    at_once_gco2e: float = 0.0
    own_pool_gco2e: float = 0.0
