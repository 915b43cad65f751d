"""Messages for pydantic's errors in terms of the file: its keys, not Python's types."""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from pydantic_core import ErrorDetails

from services.kit.net import without_password

Loc = tuple[int | str, ...]
Schema = Mapping[str, Any]

_LONGEST: Final = 60
"""Characters of a wrong value that are repeated."""

_OUGHT: Final = re.compile(r"^\w+ should ")
"""Beginning of pydantic's messages."""

_SHAPES: Final = {
    "tuple_type": "must be a list, as in [a, b]",
    "list_type": "must be a list, as in [a, b]",
    "dict_type": "must be a mapping, key: value",
    "mapping_type": "must be a mapping, key: value",
    "model_type": "must be a mapping, key: value",
    "model_attributes_type": "must be a mapping, key: value",
    "string_type": "must be text; put it into quotes",
}


def worded(item: ErrorDetails, schema: Schema) -> tuple[Loc, str]:
    """Return the location of a mistake, and a message with the allowed values.

    Args:
        item: An error of pydantic's.
        schema: JSON schema of the model; it separates keys from pydantic's names of alternatives.
    """
    if item["type"] == "extra_forbidden":
        loc, found = _walked(item["loc"][:-1], schema)
        return (*loc, item["loc"][-1]), f"unknown key{_instead(str(item['loc'][-1]), found)}"
    loc, found = _walked(item["loc"], schema)
    match item["type"]:
        case "missing":
            return loc, "required, but missing"
        case "value_error":
            return loc, item["msg"].removeprefix("Value error, ")
        case "union_tag_not_found":
            return (*loc, "kind"), f"required, but missing; one of {_kinds(found)}"
        case "union_tag_invalid":
            return (*loc, "kind"), f"must be one of {_kinds(found)}; got {item['ctx']['tag']!r}"
        case "too_short":
            message = f"needs at least {item['ctx']['min_length']}"
        case "string_pattern_mismatch" if item["loc"][-1] == "[key]":
            message = f"cannot be a name, which matches {item['ctx']['pattern']}"
        case other:
            message = _SHAPES.get(other, _OUGHT.sub("must ", item["msg"]))
    given = without_password(repr(item["input"]))
    return loc, f"{message}; got {given if len(given) <= _LONGEST else f'{given[:_LONGEST]}...'}"


def _walked(loc: Loc, root: Schema) -> tuple[Loc, Sequence[Schema]]:
    """Return the parts of a path that exist in a file, and the schemas at its end."""
    keys: list[int | str] = []
    found = list(_members(root, root))
    for part in loc:
        below = [each for one in found for each in _below(one, part, root)]
        if below:
            keys.append(part)
        found = below or [each for one in found for each in _chosen(one, part, root)] or found
    return tuple(keys), found


def _below(one: Schema, part: int | str, root: Schema) -> Iterator[Schema]:
    """Yield the schemas of one key or index of a mapping or list."""
    named = (*one.get("patternProperties", {}).values(), one.get("additionalProperties"))
    listed = one.get("items") if isinstance(part, int) else None
    below = listed or one.get("properties", {}).get(part) or named[0]
    if isinstance(below, Mapping) and part != "[key]":
        yield from _members(below, root)


def _chosen(one: Schema, tag: int | str, root: Schema) -> Iterator[Schema]:
    reference = one.get("discriminator", {}).get("mapping", {}).get(tag)
    if reference is not None:
        yield from _members({"$ref": reference}, root)


def _members(one: Schema, root: Schema) -> Iterator[Schema]:
    """Yield a schema with references followed; of a union without `kind`, its members."""
    members = (*one.get("anyOf", ()), *one.get("oneOf", ()), *one.get("allOf", ()))
    if "$ref" in one:
        yield from _members(root["$defs"][one["$ref"].rpartition("/")[2]], root)
    elif members and "discriminator" not in one:
        for member in members:
            yield from _members(member, root)
    else:
        yield one


def _kinds(found: Sequence[Schema]) -> str:
    return ", ".join(
        tag for one in found for tag in one.get("discriminator", {}).get("mapping", {})
    )


def _instead(key: str, found: Sequence[Schema]) -> str:
    """Return the most similar names, or all names."""
    known = sorted({name for one in found for name in one.get("properties", {})})
    close = get_close_matches(key, known, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known are {', '.join(known)}" if known else ""
