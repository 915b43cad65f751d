"""The page of the protocol buffers: services, messages and enums with their comments."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_INTRODUCTION = (
    "What services say to each other and to clients, from the comments of the `.proto` files. "
    "[The client protocol](../protocol.md) explains the calls of clients."
)
_FIELD, _MESSAGE, _ENUM, _SERVICE = 2, 4, 5, 6  # of descriptor.proto: parts of a location's path
_NESTED, _NESTED_ENUM = 3, 4


def page(root: Path) -> str:
    """Return the page of every .proto of ours; runs buf, which keeps the comments."""
    from google.protobuf import descriptor_pb2  # noqa: PLC0415 - only where the site is built

    buf = root / ".venv/bin/buf"
    built = subprocess.run(
        [buf if buf.exists() else "buf", "build", root / "protos", "-o", "-"],
        capture_output=True,
        check=True,
    )
    files = descriptor_pb2.FileDescriptorSet.FromString(built.stdout).file
    lines = [
        "# Protocol buffers",
        "",
        _INTRODUCTION,
        "",
    ]
    for file in sorted(files, key=lambda each: each.name):
        if not file.name.startswith("google/"):
            lines += _file(file)
    return "\n".join(lines) + "\n"


def _file(file: Any) -> Iterator[str]:
    comments = {
        tuple(place.path): _cleaned(place.leading_comments or place.trailing_comments)
        for place in file.source_code_info.location
    }
    yield f"## {file.package}\n\n`protos/{file.name}`\n"
    yield comments.get((12,), "") + "\n"  # 12: the syntax, where the comment of a file is
    for at, service in enumerate(file.service):
        yield f"### {service.name}\n\n{comments.get((_SERVICE, at), '')}\n"
        for below, method in enumerate(service.method):
            sent = f"{'stream ' * method.client_streaming}{_link(method.input_type)}"
            got = f"{'stream ' * method.server_streaming}{_link(method.output_type)}"
            text = comments.get((_SERVICE, at, _FIELD, below), "")
            yield f"#### {service.name}.{method.name}\n\n{sent} → {got}\n\n{text}\n"
    for at, message in enumerate(file.message_type):
        yield from _message(message, (_MESSAGE, at), comments, file.package)
    for at, enum in enumerate(file.enum_type):
        yield from _enum(enum, (_ENUM, at), comments, file.package)


def _message(message: Any, path: tuple[int, ...], comments: Any, scope: str) -> Iterator[str]:
    if message.options.map_entry:
        return
    name = f"{scope}.{message.name}"
    yield f"{_heading(name)}\n\n{comments.get(path, '')}\n"
    if message.field:
        yield "| field | type | |\n|---|---|---|"
    maps = {f".{name}.{each.name}": each for each in message.nested_type if each.options.map_entry}
    for at, field in enumerate(message.field):
        text = comments.get((*path, _FIELD, at), "").replace("\n", " ").replace("|", "\\|")
        yield f"| `{field.name}` = {field.number} | {_type(field, maps)} | {text} |"
    yield ""
    for at, nested in enumerate(message.nested_type):
        yield from _message(nested, (*path, _NESTED, at), comments, name)
    for at, enum in enumerate(message.enum_type):
        yield from _enum(enum, (*path, _NESTED_ENUM, at), comments, name)


def _enum(enum: Any, path: tuple[int, ...], comments: Any, scope: str) -> Iterator[str]:
    yield f"{_heading(f'{scope}.{enum.name}')}\n\n{comments.get(path, '')}\n"
    yield "| value | |\n|---|---|"
    for at, value in enumerate(enum.value):
        text = comments.get((*path, _FIELD, at), "").replace("\n", " ").replace("|", "\\|")
        yield f"| `{value.name}` = {value.number} | {text} |"
    yield ""


def _type(field: Any, maps: Any) -> str:
    if field.type_name in maps:
        key, value = maps[field.type_name].field
        return f"map: {_type(key, {})} to {_type(value, {})}"
    many = "list of " if field.label == field.LABEL_REPEATED else ""
    optional = ", optional" if field.proto3_optional else ""
    kind = (
        _link(field.type_name)
        if field.type_name
        else type(field).Type.Name(field.type).removeprefix("TYPE_").lower()
    )
    return f"{many}{kind}{optional}"


def _heading(name: str) -> str:
    """Return a heading whose anchor is the full name: packages have messages of equal names."""
    return f'<a id="{name}"></a>\n\n### {name.rpartition(".")[2]}'


def _link(type_name: str) -> str:
    name = type_name.removeprefix(".")
    short = name.rpartition(".")[2]
    return f"`{name}`" if name.startswith("google.") else f"[{short}](#{name})"


def _cleaned(text: str) -> str:
    """Return a comment as Markdown; lines that are indented stay as they are written."""
    lines = [line.removeprefix(" ") for line in text.splitlines()]
    cleaned = re.sub(r"<(?=\w)", "&lt;", "\n".join(lines).strip())
    return re.sub(r"(?m)^(Errors|Metadata):\n((?: {2,}.*\n?)+)", _as_code, cleaned + "\n").strip()


def _as_code(match: re.Match[str]) -> str:
    return f"{match[1]}:\n\n```text\n{match[2].rstrip()}\n```\n"
