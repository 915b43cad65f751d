"""Members of a request that llama.cpp's server reads; others would change an answer in silence.

Source: llama.cpp, "tools/server/README.md" (`/completion`, `/v1/chat/completions`).
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from services.gpuagent.worker.generative.prompts import changes_nothing
from services.kit.errors import InvalidArgument


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAMPLING: Final = _words(
    """
    adaptive_decay adaptive_target cache_prompt dry_allowed_length dry_base dry_multiplier
    dry_penalty_last_n dry_sequence_breakers dynatemp_exponent dynatemp_range frequency_penalty
    grammar ignore_eos json_schema logit_bias logprobs max_tokens min_keep min_p mirostat
    mirostat_eta mirostat_tau n n_keep n_predict n_probs post_sampling_probs presence_penalty
    repeat_last_n repeat_penalty return_progress return_tokens samplers seed stop stream
    stream_options t_max_predict_ms temperature timings_per_token top_k top_n_sigma top_p
    typical_p xtc_probability xtc_threshold
    """
)
_CHAT: Final = _words(
    """
    add_generation_prompt chat_template_kwargs continue_final_message max_completion_tokens messages
    parallel_tool_calls reasoning_effort reasoning_format response_format thinking_budget_tokens
    tool_choice tools top_logprobs
    """
)
_RESPONSES: Final = _words(
    """
    input instructions max_output_tokens parallel_tool_calls seed stop stream temperature
    tool_choice tools top_p
    """
)
_READ: Final[Mapping[str, frozenset[str]]] = {
    "/v1/completions": _SAMPLING | {"prompt", "response_fields"},
    "/v1/chat/completions": _SAMPLING | _CHAT,
    "/v1/responses": _RESPONSES,
}
_ABOUT: Final = _words(
    """
    client_metadata metadata prompt_cache_key prompt_cache_retention safety_identifier
    service_tier store user
    """
)
"""Members about a request, which change no answer."""

_NO_EFFECT: Final[Mapping[str, tuple[object, ...]]] = {
    "add_special_tokens": (False,),
    "background": (False,),
    "bad_words": ([],),
    "best_of": (1,),
    "echo": (False,),
    "include": ([],),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "priority": (0,),
    "reasoning": ({},),
    "repetition_penalty": (1,),
    "return_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop_token_ids": ([],),
    "stream_interval": (1,),
    "suffix": ("",),
    "text": ({}, {"format": {"type": "text"}}),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
    "use_beam_search": (False,),
}
"""Other members that clients send, with the values that change nothing."""


def check(body: Mapping[str, Any], path: str, lacking: Collection[str] = ()) -> None:
    """Refuse members that llama.cpp would pass over, by name, unless they change nothing.

    Args:
        body: Of a request.
        path: Where it goes; others than those of texts read what they need.
        lacking: Members for which the model's chat template has no place.

    Raises:
        InvalidArgument: There is such a member.
    """
    read = _READ.get(path)
    if read is None:
        return
    for name in filter(body.get, lacking):
        if not (name == "tools" and body.get("tool_choice") == "none"):
            raise InvalidArgument.at(
                name,
                "the model's chat template has no place for it; runtime.chat_template is another",
                reason="UNSUPPORTED",
            )
    for name, value in body.items():
        if value is None or name in read or name in _ABOUT:
            continue
        if name not in _NO_EFFECT:
            raise InvalidArgument.at(
                name, "unknown to llama.cpp, which runs this model", reason="UNSUPPORTED"
            )
        if not changes_nothing(value, _NO_EFFECT[name]):
            allowed = " or ".join(map(str, _NO_EFFECT[name]))
            raise InvalidArgument.at(
                name,
                f"must be left out or {allowed}: llama.cpp, which runs this model, does nothing"
                " else",
                reason="UNSUPPORTED",
            )


def with_chosen_tool(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a body in which a tool that must be called is the only one, and required.

    llama.cpp takes a `tool_choice` that is an object for "auto".

    Args:
        body: Of a request.

    Raises:
        InvalidArgument: `tool_choice` names none of the tools, or is of another kind.
    """
    choice = body.get("tool_choice")
    if not isinstance(choice, dict):
        return body
    if choice.get("type") != "function":
        raise InvalidArgument.at(
            "tool_choice",
            'must be "none", "auto", "required" or a function: llama.cpp does nothing else',
            reason="UNSUPPORTED",
        )
    name = _name(choice)
    tools = [each for each in body.get("tools") or () if _name(each) == name]
    if name is None or not tools:
        raise InvalidArgument.at("tool_choice", f"there is no function {name!r} among the tools")
    return {**body, "tools": tools, "tool_choice": "required"}


def _name(given: Any) -> Any:
    """Return a function's name: of chat's form, or of that of /v1/responses."""
    found = given.get("function", given) if isinstance(given, dict) else None
    return found.get("name") if isinstance(found, dict) else None
