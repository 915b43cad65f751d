"""Reading `cinquefoil.yaml`: file, then environment; mistakes are reported with their line."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource

from services.kit.config import Deployment, Section, yaml_document
from services.kit.config.validation_messages import worded

ENV_PREFIX = "CINQUEFOIL_"
ENV_FILE = "CINQUEFOIL_CONFIG"
DEFAULT_FILE = Path("cinquefoil.yaml")
# Paths of files: the deployment, and those that `cinquefoil data` fetched.
_NO_SETTINGS = (ENV_FILE, "CINQUEFOIL_DATA")

# Variables that a kubelet sets in every pod for a Service named "cinquefoil...".
_SERVICE_LINK = re.compile(
    ENV_PREFIX
    + r"([A-Z0-9]+_)*"
    + r"(SERVICE_HOST=|SERVICE_PORT(_[A-Z0-9_]+)?=|PORT=(tcp|udp|sctp)://"
    + r"|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=).*"
)

_MOST_MISTAKES = 200
_TWICE = "given twice: in this file, and as a further model (models_file, a Model object)"

AnySection = TypeVar("AnySection", bound=Section)


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing wrong with a deployment.

    Attributes:
        where: Dotted path of the key, for example "models.digits.slo".
        line: Line in the file, from 1; 0 where the value came from the environment.
        message: What is wrong and what is allowed.
    """

    where: str
    line: int
    message: str

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.where}: {self.message}"


class ConfigError(Exception):
    """The deployment file cannot be used.

    Attributes:
        path: The file.
        mistakes: All of them, in order of line.
    """

    def __init__(self, path: Path, mistakes: list[Mistake]) -> None:
        self.path = path
        self.mistakes = sorted(mistakes, key=lambda mistake: (mistake.line, mistake.where))
        super().__init__("\n".join(f"{path}: {mistake}" for mistake in self.mistakes))


def config_path(given: Path | None = None) -> Path:
    """Return the file to read: the one given, $CINQUEFOIL_CONFIG, or ./cinquefoil.yaml."""
    return given or Path(os.environ.get(ENV_FILE, DEFAULT_FILE))


def load(path: Path, further: Mapping[str, Any] | None = None) -> Deployment:
    """Read a deployment file; relative paths in it are relative to the file.

    Args:
        path: The file.
        further: Further models, in the place of those of its `models_file`. None: those.

    Raises:
        ConfigError: The file is missing, is not YAML, or says something not allowed.
    """
    data, tree = document(path)
    if further is None:
        further = _further(data, path)
    own = data.get("models") or {}
    if twice := sorted(further.keys() & own.keys() if isinstance(own, dict) else ()):
        raise ConfigError(
            path,
            [Mistake(f"models.{name}", line_of(tree, ("models", name)), _TWICE) for name in twice],
        )
    if further:
        data["models"] = {**own, **further}
    try:
        found = _read(data)
    except ValidationError as error:
        raise ConfigError(path, list(mistakes(error, tree))) from error
    return resolved(found, _folder(path)).read_from(path.absolute(), digest(data))


def further_models(path: Path) -> Mapping[str, Any]:
    """Return what a deployment file's `models_file` has; nothing, where there is no such file.

    Raises:
        ConfigError: One of both cannot be read, or is no mapping.
    """
    return _further(document(path)[0], path)


def _further(data: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    given = data.get("models_file")
    if not isinstance(given, str) or not (file := _folder(path) / given).exists():
        return {}
    found = read_yaml(file)[0]
    if found is not None and not isinstance(found, dict):
        raise ConfigError(file, [Mistake("file", 1, "must be a mapping of names to models")])
    return {str(name): section for name, section in (found or {}).items()}


def _folder(path: Path) -> Path:
    """Return the folder that relative paths of a deployment file begin at.

    A kubelet keeps each revision of a ConfigMap in another folder, behind the link "..data": then
    it is the folder that is mounted, or paths would change with every revision.
    """
    mounted = path.absolute().parent
    return mounted if (mounted / "..data").is_symlink() else path.resolve().parent


def digest(data: Mapping[str, Any]) -> str:
    """Return the digest of what a file says: comments and order of keys do not count."""
    text = json.dumps(data, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def document(path: Path) -> tuple[dict[str, Any], yaml.Node | None]:
    """Return a YAML file's mapping, and its nodes for `line_of`.

    Raises:
        ConfigError: The file is missing, is not YAML, or is no mapping.
    """
    data, tree = read_yaml(path)
    if not isinstance(data, dict):
        raise ConfigError(
            path, [Mistake("file", 1, "must be a mapping that starts with version: v1")]
        )
    return {str(key): value for key, value in data.items()}, tree


def read_yaml(path: Path) -> tuple[Any, yaml.Node | None]:
    """Return what a YAML file holds, and its nodes for `line_of`.

    Raises:
        ConfigError: The file is missing, is not YAML, is too large, or has a key twice.
    """
    try:
        data, tree = yaml_document.read(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            path, [Mistake("file", 0, f"cannot be read: {error.strerror}")]
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(path, [Mistake("file", 0, "is not text (UTF-8)")]) from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise ConfigError(path, [Mistake("yaml", line, str(error.problem))]) from error
    except yaml.YAMLError as error:
        raise ConfigError(path, [Mistake("yaml", 0, " ".join(str(error).split()))]) from error
    twice = list(_given_twice(tree))
    if twice:
        raise ConfigError(path, twice)
    return data, tree


def _given_twice(
    node: yaml.Node | None, place: tuple[str, ...] = (), seen: frozenset[int] = frozenset()
) -> Iterator[Mistake]:
    """Yield keys that a mapping has more than once: YAML would silently keep the last."""
    if node is None or id(node) in seen:  # an alias of what it is in
        return
    seen |= {id(node)}
    if isinstance(node, yaml.SequenceNode):
        for index, entry in enumerate(node.value):
            yield from _given_twice(entry, (*place, str(index)), seen)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for key, value in node.value:
        where, line = (*place, str(key.value)), key.start_mark.line + 1
        if key.value in lines:
            yield Mistake(".".join(where), line, f"given twice; line {lines[key.value]} has it too")
        lines[key.value] = line
        yield from _given_twice(value, where, seen)


def _read(data: dict[str, Any]) -> Deployment:
    """Return a file's deployment, with the environment's values in the place of the file's."""
    _refuse_unknown_environment(os.environ)
    given = EnvSettingsSource(
        cast("type[BaseSettings]", Deployment),  # only its fields and configuration are used
        case_sensitive=False,
        env_prefix=ENV_PREFIX,
        env_nested_delimiter="__",
    )()
    return Deployment(**_merged(data, given))


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return mappings in one; of a value that both have, that of `above` counts."""
    found = {**below, **above}
    for key in below.keys() & above.keys():
        if isinstance(below[key], Mapping) and isinstance(above[key], Mapping):
            found[key] = _merged(below[key], above[key])
    return found


def _refuse_unknown_environment(environment: Mapping[str, str]) -> None:
    known = {name.upper() for name in Deployment.model_fields}
    for name, value in environment.items():
        if _SERVICE_LINK.fullmatch(f"{name}={value}"):
            continue
        if name.startswith(ENV_PREFIX) and name not in _NO_SETTINGS:
            section = name.removeprefix(ENV_PREFIX).split("__")[0]
            if section.upper() not in known:
                raise ConfigError(
                    Path(name),
                    [Mistake(name, 0, f"unknown setting; sections are {', '.join(sorted(known))}")],
                )


def mistakes(
    error: ValidationError, tree: yaml.Node | None, model: type[BaseModel] = Deployment
) -> Iterator[Mistake]:
    """Yield what pydantic found wrong, each with its line in the file.

    Args:
        error: Pydantic's.
        tree: The file.
        model: What it was read as.
    """
    schema = _schema(model)
    for item in error.errors(include_url=False)[:_MOST_MISTAKES]:
        if item["type"] == "too_short" and item["input"]:
            continue  # none of its entries is valid: each is reported by itself
        loc, message = worded(item, schema)
        if not loc and ": " in message:  # a rule of the whole file names the key that breaks it
            where, _, message = message.partition(": ")
            loc = tuple(where.split("."))
        yield Mistake(".".join(map(str, loc)) or "file", line_of(tree, loc), message)


@cache
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return a model's JSON schema: to make the deployment's takes a tenth of a second."""
    return model.model_json_schema()


def line_of(node: yaml.Node | None, loc: tuple[int | str, ...]) -> int:
    """Return the line of the deepest part of `loc` that the file has; 0 where it has none."""
    line = 0
    for part in loc:
        child = _child(node, part)
        if child is None:
            continue  # pydantic also names union members, which the file does not
        key, node = child
        line = key.start_mark.line + 1
    return line


def _child(node: yaml.Node | None, part: int | str) -> tuple[yaml.Node, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None


def resolved(section: AnySection, base: Path) -> AnySection:
    """Make relative paths relative to the file rather than to where a service was started."""

    def walk(value: Any) -> Any:
        if isinstance(value, Path):
            return value if value.is_absolute() else base / value
        if isinstance(value, dict):
            return {key: walk(entry) for key, entry in value.items()}
        if isinstance(value, tuple):
            return tuple(walk(entry) for entry in value)
        if isinstance(value, Section):
            given = value.model_fields_set  # the others may have no path at all
            return value.model_copy(
                update={  # only these: what is updated counts as given
                    name: found
                    for name in type(value).model_fields
                    if (entry := getattr(value, name)) != Path() or name in given
                    if (found := walk(entry)) != entry
                }
            )
        return value

    found: AnySection = walk(section)
    return found
