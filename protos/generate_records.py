"""Write `records.py` beside the stubs of each package: its messages as frozen values.

    protoc --include_source_info --descriptor_set_out=/dev/stdout ... | generate_records.py

A record has the fields of its message, in their order, and knows nothing of protobuf, so that any
code may hold one. `services/kit/rpc/record_mapping.py` converts.

    number, text, enum    int, float, bool, str, bytes, IntEnum     repeated  tuple[X, ...]
    Timestamp, Duration   datetime (UTC), timedelta                 map       Mapping[K, X]
    Value                 JSON as Python has it                     message   its record

Every field has protobuf's default. One that is `optional`, or one of a oneof, is None while unset;
any other message is there, with its defaults. Records without any of these have an order. A comment
that says "As text: `{profile}@{start}`" makes that of the fields where the record is written as
text. What an rpc takes or returns is no record, unless another message has it as a field.
"""

import re
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

ROOT = Path(__file__).parent
WIDTH = 100
HEADER = '''"""Messages of `{package}` as frozen values; written by `make protos`."""

'''
NUMBERS = {
    FieldDescriptorProto.TYPE_DOUBLE: ("float", "0.0"),
    FieldDescriptorProto.TYPE_FLOAT: ("float", "0.0"),
    FieldDescriptorProto.TYPE_BOOL: ("bool", "False"),
    FieldDescriptorProto.TYPE_STRING: ("str", '""'),
    FieldDescriptorProto.TYPE_BYTES: ("bytes", 'b""'),
}
KNOWN = {
    "google.protobuf.Timestamp": ("datetime", "datetime.fromtimestamp(0, UTC)"),
    "google.protobuf.Duration": ("timedelta", "timedelta()"),
    "google.protobuf.Value": ("Any", "None"),
}
LIBRARY = {
    "Mapping": "collections.abc",
    "dataclass": "dataclasses",
    "field": "dataclasses",
    "UTC": "datetime",
    "datetime": "datetime",
    "timedelta": "datetime",
    "IntEnum": "enum",
    "Any": "typing",
}

Names = defaultdict[str, set[str]]
"""Imported names by module."""


def main() -> None:
    """Write the records of all packages of a FileDescriptorSet."""
    packages = defaultdict(list)
    for file in FileDescriptorSet.FromString(sys.stdin.buffer.read()).file:
        packages[file.package].append(file)
    for package, files in packages.items():
        path = ROOT.joinpath(*package.split("."), "records.py")
        path.write_text(Package(package, files).module(), encoding="utf-8")


class Package:
    """The messages and enums of one package."""

    def __init__(self, name: str, files: Iterable[FileDescriptorProto]) -> None:
        self.name = name
        self.imports: Names = defaultdict(set)
        self.comments: dict[str, str] = {}
        self.enums: list[EnumDescriptorProto] = []
        self.messages: dict[str, DescriptorProto] = {}
        self.calls: set[str] = set()
        for file in files:
            comments = {tuple(each.path): each for each in file.source_code_info.location}
            for path, each in comments.items():
                self.comments[_path(file, path)] = each.leading_comments.strip()
            self.enums += file.enum_type
            self.messages |= {f"{name}.{each.name}": each for each in file.message_type}
            for method in (each for service in file.service for each in service.method):
                self.calls |= {method.input_type.lstrip("."), method.output_type.lstrip(".")}
        self.calls -= {_type(field) for each in self.messages.values() for field in each.field}

    def module(self) -> str:
        """Return the module, each class behind those that it needs."""
        written: dict[str, str] = {}
        for name in [each for each in self.messages if each not in self.calls]:
            self._write(name, written)
        enums = [self._enum(each) for each in self.enums]
        library = {
            module: ", ".join(sorted(names, key=str.swapcase))
            for module, names in sorted(self.imports.items())
        }
        lines = [f"from {module} import {names}\n" for module, names in library.items()]
        own = [line for line in lines if line.startswith("from cinquefoil")]
        imports = "".join(line for line in lines if line not in own)
        imports += "\n" + "".join(own) if own else ""
        return HEADER.format(package=self.name) + imports + "".join((*enums, *written.values()))

    def _write(self, name: str, written: dict[str, str]) -> None:
        if name in written:
            return
        for each in self.messages[name].field:
            if _type(each) in self.messages and _type(each) != name:
                self._write(_type(each), written)
        for nested in self.messages[name].nested_type:
            for each in nested.field:
                if _type(each) in self.messages:
                    self._write(_type(each), written)
        written[name] = self._record(name, self.messages[name])

    def _use(self, *names: str) -> None:
        for name in names:
            self.imports[LIBRARY[name]].add(name)

    def _enum(self, enum: EnumDescriptorProto) -> str:
        self._use("IntEnum")
        prefix = enum.value[0].name.removesuffix("UNSPECIFIED")
        text = f"\n\nclass {enum.name}(IntEnum):\n"
        text += _docstring(self.comments[f"{self.name}.{enum.name}"], []) + "\n"
        for value in enum.value:
            name = value.name.removeprefix(prefix)
            comment = self.comments[f"{self.name}.{enum.name}.{value.name}"]
            text += "".join(f"    # {line.strip()}\n" for line in comment.splitlines())
            text += f"    {name} = {value.number}\n"
        return text + (
            "\n    @classmethod\n"
            f'    def _missing_(cls, value: object) -> "{enum.name}":\n'
            '        """Return UNSPECIFIED for a value that only newer programs know."""\n'
            "        return cls.UNSPECIFIED\n"
        )

    def _record(self, name: str, message: DescriptorProto) -> str:
        self._use("dataclass")
        fields = [(each.name, *self._hint(each, message)) for each in message.field]
        order = bool(fields) and not any(self._has_no_order(each) for each in message.field)
        head = f"\n\n@dataclass(frozen=True, slots=True{', order=True' if order else ''})\n"
        comments = [(each.name, self.comments[f"{name}.{each.name}"]) for each in message.field]
        summary = self.comments[name] or f"The message `{name}`."
        text = f"{head}class {message.name}:\n{_docstring(summary, comments)}"
        if fields:
            text += "\n"
        text += "".join(f"    {each}: {hint} = {default}\n" for each, hint, default in fields)
        if match := re.search("As text: `([^`]+)`", " ".join(summary.split())):
            form = match.group(1).replace("{", "{self.")
            text += f'\n    def __str__(self) -> str:\n        return f"{form}"\n'
        return text

    def _has_no_order(self, field: FieldDescriptorProto) -> bool:
        return field.type == FieldDescriptorProto.TYPE_MESSAGE or (field.HasField("oneof_index"))

    def _hint(self, field: FieldDescriptorProto, message: DescriptorProto) -> tuple[str, str]:
        """Return a field's type and its default."""
        maps = {each.name: each for each in message.nested_type if each.options.map_entry}
        entry = maps.get(field.type_name.rpartition(".")[2])
        if entry is not None:
            (key, _), (value, _) = (self._single(each) for each in entry.field)
            self._use("Mapping", "field")
            return f"Mapping[{key}, {value}]", "field(default_factory=dict)"
        hint, default = self._single(field)
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            return f"tuple[{hint}, ...]", "()"
        if field.HasField("oneof_index"):
            return f"{hint} | None", "None"
        if "datetime." in default:
            self._use("UTC")
        return hint, default

    def _single(self, field: FieldDescriptorProto) -> tuple[str, str]:
        if field.type_name:
            package, _, kind = _type(field).rpartition(".")
            if _type(field) in KNOWN:
                hint, default = KNOWN[_type(field)]
                self._use(hint)
                return hint, default
            if package != self.name:
                self.imports[f"{package}.records"].add(kind)
            unset = ".UNSPECIFIED" if field.type == FieldDescriptorProto.TYPE_ENUM else "()"
            return kind, kind + unset
        return NUMBERS.get(field.type, ("int", "0"))


def _type(field: FieldDescriptorProto) -> str:
    return field.type_name.removeprefix(".")


def _path(file: FileDescriptorProto, path: tuple[int, ...]) -> str:
    """Return the dotted name of what a comment stands before; "" for anything but declarations."""
    match path:
        case (4, message):
            return f"{file.package}.{file.message_type[message].name}"
        case (4, message, 2, field):
            found = file.message_type[message]
            return f"{file.package}.{found.name}.{found.field[field].name}"
        case (5, enum):
            return f"{file.package}.{file.enum_type[enum].name}"
        case (5, enum, 2, value):
            found = file.enum_type[enum]
            return f"{file.package}.{found.name}.{found.value[value].name}"
    return ""


def _docstring(summary: str, fields: Iterable[tuple[str, str]]) -> str:
    body = "\n".join(_lines(summary, "    ", "    "))
    attributes = [
        line for name, comment in fields for line in _lines(f"{name}: {comment}", " " * 8, " " * 12)
    ]
    if attributes:
        body += "\n\n    Attributes:\n" + "\n".join(attributes) + "\n    "
    elif "\n" in body:
        body += "\n    "
    return f'    """{body.lstrip()}"""\n'


def _lines(text: str, first: str, rest: str) -> Iterator[str]:
    for number, paragraph in enumerate(text.split("\n\n")):
        if number:
            yield ""
        yield from textwrap.wrap(
            " ".join(paragraph.split()),
            WIDTH,
            initial_indent=rest if number else first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        )


if __name__ == "__main__":
    main()
