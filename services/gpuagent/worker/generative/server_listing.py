"""Models that a server of the OpenAI API lists.

Source: OpenAI, "API reference", models; vLLM (`max_model_len`, `parent`), llama.cpp (`meta`).
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from services.kit.json_bounds import MAX_VALUES, parsed_answer

_LONGEST_NAME: Final = 512
_MOST_ADAPTERS: Final = 1024
_MOST_CONTEXT_TOKENS: Final = 2**31


class ServedModel(NamedTuple):
    """A model of a server.

    Attributes:
        name: Its name there.
        adapters: Adapters of it that are loaded.
        context_tokens: Its context; 0: not stated.
    """

    name: str
    adapters: tuple[str, ...]
    context_tokens: int


def served_model(body: bytes, name: str) -> ServedModel | None:
    """Return a model that a server lists; None: it does not.

    Args:
        body: The server's answer.
        name: Name of the model; "": the first.

    Raises:
        ValueError: The answer is no list of models.
    """
    found = parsed_answer(body, MAX_VALUES)
    listed = found.get("data") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise ValueError("no list of models")  # noqa: TRY004 - one error for every answer
    named = [each for each in listed if isinstance(each, dict) and _is_name(each.get("id"))]
    model = next((each for each in named if name in ("", each["id"])), None)
    if model is None:
        return None
    adapters = [each["id"] for each in named if each.get("parent") == model["id"]]
    return ServedModel(model["id"], tuple(adapters[:_MOST_ADAPTERS]), _context_tokens(model))


def _is_name(given: object) -> bool:
    return isinstance(given, str) and 0 < len(given) <= _LONGEST_NAME and given.isprintable()


def _context_tokens(model: Mapping[str, Any]) -> int:
    """Return the context that a server states of a model: vLLM's way, or llama.cpp's."""
    meta = model.get("meta")
    stated = model.get("max_model_len") or (meta.get("n_ctx") if isinstance(meta, dict) else None)
    return stated if type(stated) is int and 0 < stated <= _MOST_CONTEXT_TOKENS else 0
