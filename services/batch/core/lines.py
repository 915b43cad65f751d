"""Lines of a batch's files: requests that are read, results that are written.

Source: OpenAI, "Batch API" and "API reference": batch, request input and output objects.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import from_json, to_json

from services.kit.errors import InvalidArgument
from services.kit.json_bounds import check_size, check_values, parsed_answer

ENDPOINTS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v2/models/MODEL/infer",
)
"""Paths that lines may name."""

WINDOWS_S: Final[Mapping[str, float]] = {f"{hours}h": hours * 3600.0 for hours in (1, 4, 24, 72)}
"""Windows by OpenAI's word, s; it knows "24h" alone."""

EXPIRED: Final = "batch_expired"

_MODEL_PATH: Final = re.compile(r"/v2/models/([^/\s?#]{1,256})/infer")
_MODEL: Final = re.compile(r"[^\x00-\x20\x7f]{1,256}")
_TEXT_PATHS: Final = frozenset(ENDPOINTS[:-1])
_MOST_VALUES: Final = 2**18
"""Values of a line, those of tensors included."""
_LONGEST_ID: Final = 512
_LONGEST_TEXT: Final = 4096
"""Of an answer that is not JSON, bytes."""
_MOST_TOKENS: Final = 10**7
_BYTES_PER_TOKEN: Final = 4
_TEXT_FIELDS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class Fault(Exception):
    """A line that cannot be answered.

    Attributes:
        code: A word for programs.
        message: What is wrong and what is allowed.
        custom_id: The line's; "": it has none.
    """

    def __init__(self, code: str, message: str, custom_id: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.custom_id = code, message, custom_id


@dataclass(frozen=True, slots=True)
class Request:
    """One line of an input file.

    Attributes:
        custom_id: The caller's name for it.
        model: Model that it is for.
        body: JSON of the request.
        tokens: Estimate of its prompt's tokens, and what its answer may have; 0: not a text.
    """

    custom_id: str
    model: str
    body: bytes
    tokens: int


def is_endpoint(path: str) -> bool:
    """Return whether lines may name a path."""
    return path in _TEXT_PATHS or _MODEL_PATH.fullmatch(path) is not None


def parsed(line: bytes, endpoint: str, model: str = "") -> Request:
    """Return the request of a line.

    Args:
        line: JSON.
        endpoint: Path of the batch, which the line must name.
        model: The batch's; "": any, as of the first line.

    Raises:
        Fault: The line cannot be answered.
    """
    given = _read(line)
    name = given.get("custom_id")
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_ID:
        raise Fault("invalid_custom_id", f"custom_id: must be 1 to {_LONGEST_ID} characters")
    if given.get("method", "POST") != "POST":
        raise Fault("invalid_method", "method: must be POST", name)
    if given.get("url") != endpoint:
        raise Fault("mismatched_url", f"url: must be the batch's endpoint, {endpoint}", name)
    body = given.get("body")
    if not isinstance(body, dict):
        raise Fault("invalid_body", "body: must be an object", name)
    if body.get("stream"):
        raise Fault("invalid_body", "body.stream: must be false: a batch has no reader", name)
    path = _MODEL_PATH.fullmatch(endpoint)
    its = path[1] if path else body.get("model")
    if not isinstance(its, str) or not _MODEL.fullmatch(its):
        raise Fault("invalid_model", "body.model: must name a model", name)
    if model and its != model:
        raise Fault("mismatched_model", f"body.model: must be {model}, as in the first line", name)
    return Request(name, its, to_json(body), 0 if path else _tokens(body, len(line)))


def _read(line: bytes) -> dict[str, Any]:
    try:
        check_size(line)
        check_values(line, _MOST_VALUES, "values")
        given = from_json(line, allow_inf_nan=False)
    except InvalidArgument as error:
        raise Fault("line_too_large", error.message) from None
    except ValueError as error:
        raise Fault("invalid_json_line", f"not JSON: {error}") from None
    if not isinstance(given, dict):
        raise Fault("invalid_json_line", "must be an object")
    return given


def _tokens(body: Mapping[str, Any], size_bytes: int) -> int:
    limits = (body.get(field) for field in _TEXT_FIELDS)
    most = next((each for each in limits if isinstance(each, int) and each > 0), 0)
    return min(size_bytes // _BYTES_PER_TOKEN + most, _MOST_TOKENS)


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of an answer, as it states itself.

    Attributes:
        prompt_tokens, output_tokens: Tokens; 0: not stated.
        energy_j: Attributed energy, J.
        carbon_gco2e: Attributed emissions, gCO2e.
        energy_marginal_j: Energy that it added, J; the attributed one where that is not stated.
        carbon_marginal_gco2e: Emissions of that energy, gCO2e.
    """

    prompt_tokens: int = 0
    output_tokens: int = 0
    energy_j: float = 0.0
    carbon_gco2e: float = 0.0
    energy_marginal_j: float = 0.0
    carbon_marginal_gco2e: float = 0.0


def answered(
    custom_id: str, result_id: str, status: int, answer: bytes
) -> tuple[bytes, bool, Usage]:
    """Return the line of a server's answer, whether it failed, and its cost as it says itself.

    Args:
        custom_id: The request's.
        result_id: Name of the result.
        status: HTTP status.
        answer: The server's body: JSON, else text.
    """
    good = 200 <= status < 300
    try:
        found, body = parsed_answer(answer), answer
    except ValueError as error:
        message = str(error) if good else answer[:_LONGEST_TEXT].decode(errors="replace")
        found, body, good = None, to_json({"error": {"message": message}}), False
    head = to_json({"id": result_id, "custom_id": custom_id})[:-1]
    response = to_json({"status_code": status, "request_id": result_id})[:-1]
    line = b'%s,"response":%s,"body":%s},"error":null}' % (
        head,
        response,
        body.replace(b"\n", b" ").strip(),  # in valid JSON never within a string
    )
    return line, not good, _usage(_object(found))


def failed(fault: Fault, result_id: str) -> bytes:
    """Return the line of a request that no server has answered."""
    return to_json(
        {
            "id": result_id,
            "custom_id": fault.custom_id,
            "response": None,
            "error": {"code": fault.code, "message": fault.message},
        }
    )


def _usage(body: Mapping[str, Any]) -> Usage:
    usage = _object(body.get("usage"))
    receipt = (
        _object(usage.get("cinquefoil"))
        or _object(body.get("cinquefoil"))
        or _object(body.get("parameters"))
    )
    energy_j, carbon_gco2e = (_number(receipt.get(each)) for each in ("energy_j", "carbon_gco2e"))
    marginal_j = _number(receipt.get("energy_marginal_j", energy_j))
    return Usage(
        int(_number(usage.get("prompt_tokens", usage.get("input_tokens")))),
        int(_number(usage.get("completion_tokens", usage.get("output_tokens")))),
        energy_j,
        carbon_gco2e,
        marginal_j,
        min(carbon_gco2e * marginal_j / energy_j, _LARGEST) if energy_j else 0.0,
    )


_LARGEST: Final = 1e12


def _number(given: object) -> float:
    known = isinstance(given, int | float) and not isinstance(given, bool)
    return float(given) if known and 0 <= given < _LARGEST else 0.0  # type: ignore[operator,arg-type]


def _object(given: object) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}
