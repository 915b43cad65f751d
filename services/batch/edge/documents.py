"""Files and batches as OpenAI's API writes them.

Source: OpenAI, "API reference": the file object, the batch object.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from cinquefoil.batch.v1.records import Batch, BatchOutlook, BatchState, File
from services.batch.core.lines import WINDOWS_S
from services.kit.errors import InvalidArgument, ServiceError
from services.kit.http.statuses import STATUSES

_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


def error_form(error: ServiceError) -> Mapping[str, object]:
    """Return the body of an error."""
    status = STATUSES.get(error.status, 500)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "param": error.field or None,
            "code": error.reason.lower(),
        }
    }


def file_document(file: File) -> dict[str, Any]:
    """Return a file object."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.size_bytes,
        "created_at": _unix(file.created_at),
        "expires_at": _unix(file.expires_at),
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }


def batch_document(batch: Batch) -> dict[str, Any]:
    """Return a batch object; `usage.cinquefoil` has the sums of its receipts.

    `outlook`, which OpenAI's has not, says when it runs, or what would make its window possible.
    """
    ended = {
        state: batch.ended_at if batch.state is state else None
        for state in (
            BatchState.COMPLETED,
            BatchState.FAILED,
            BatchState.EXPIRED,
            BatchState.CANCELLED,
        )
    }
    errors = [
        {"code": each.code, "message": each.message, "line": each.line or None, "param": None}
        for each in batch.errors
    ]
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model or None,
        "errors": {"object": "list", "data": errors} if errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": window_word(batch.window),
        "status": batch.state.name.lower(),
        "output_file_id": batch.output_file_id or None,
        "error_file_id": batch.error_file_id or None,
        "created_at": _unix(batch.created_at),
        "in_progress_at": _unix(batch.in_progress_at),
        "expires_at": _unix(batch.created_at + batch.window),
        "finalizing_at": _unix(batch.finalizing_at),
        "completed_at": _unix(ended[BatchState.COMPLETED]),
        "failed_at": _unix(ended[BatchState.FAILED]),
        "expired_at": _unix(ended[BatchState.EXPIRED]),
        "cancelling_at": _unix(batch.cancelling_at),
        "cancelled_at": _unix(ended[BatchState.CANCELLED]),
        "request_counts": {
            "total": batch.lines,
            "completed": batch.completed,
            "failed": batch.failed,
        },
        "usage": {
            "input_tokens": batch.prompt_tokens,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": batch.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": batch.prompt_tokens + batch.output_tokens,
            "cinquefoil": {
                "energy_j": batch.energy_j,
                "carbon_gco2e": batch.carbon_gco2e,
                "energy_marginal_j": batch.energy_marginal_j,
                "carbon_marginal_gco2e": batch.carbon_marginal_gco2e,
            },
        },
        "metadata": dict(batch.metadata) or None,
        "outlook": _outlook(batch.outlook),
    }


def _outlook(given: BatchOutlook | None) -> dict[str, Any] | None:
    if given is None:
        return None
    return {
        "done_by": _unix(given.done_by),
        "late_requests": given.late_requests,
        "text": given.text,
    }


def listed(documents: Sequence[Mapping[str, Any]], more: bool) -> dict[str, Any]:
    """Return a page of a list."""
    return {
        "object": "list",
        "data": documents,
        "first_id": documents[0]["id"] if documents else None,
        "last_id": documents[-1]["id"] if documents else None,
        "has_more": more,
    }


def window_s(word: object) -> float:
    """Return a window by its word, s.

    Raises:
        InvalidArgument: There is no such window.
    """
    if not isinstance(word, str) or word not in WINDOWS_S:
        raise InvalidArgument.at(
            "completion_window", f"must be one of {', '.join(WINDOWS_S)}, got {str(word)[:40]!r}"
        )
    return WINDOWS_S[word]


def window_word(window: timedelta) -> str:
    """Return the word of a window."""
    seconds = window.total_seconds()
    return next((word for word, each in WINDOWS_S.items() if each == seconds), f"{seconds:.0f}s")


def _unix(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
