"""YAML documents as data: bounded in depth, in size with aliases, and in the length of numbers.

libyaml takes a time that grows with the square of the depth, aliases of aliases make nine lines a
billion values, and PyYAML reads numbers of any length (`1:59:59:...` and others). So these are
looked at before values are made of them.
"""

import re
from itertools import chain
from typing import Any, Final

import yaml

MAX_CHARACTERS: Final = 4 * 2**20
MAX_VALUES: Final = 100_000
"""Values of a document, what aliases repeat counted each time: a node of a deployment has 20."""
_MAX_MARKS: Final = 4 * MAX_VALUES
"""Commas, colons, brackets and lines: a value has one at least, and takes 4 us and 400 bytes before
it can be counted."""

MAX_DEPTH: Final = 200
_LONGEST_NUMBER: Final = 400

# libyaml reads the file of a thousand nodes in a tenth of the time.
_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

_BRACKET: Final = re.compile(r"[][{}]|(?:^[ \t]*|(?<=[-?:] ))[-?:] ", re.MULTILINE)
_TEXT: Final = "tag:yaml.org,2002:str"


def read(text: str) -> tuple[Any, yaml.Node | None]:
    """Return what a document holds, and its nodes as they are written.

    Raises:
        yaml.YAMLError: It is not YAML, or exceeds a bound; the message says which.
    """
    if len(text) > MAX_CHARACTERS:
        raise _refused(f"{len(text)} characters, where at most {MAX_CHARACTERS} are read", 0)
    if (marks := sum(map(text.count, ",:[{\n"))) > _MAX_MARKS:
        raise _refused(f"{marks} commas, colons, brackets and lines; {_MAX_MARKS} are read", 0)
    _check_depth(text)
    loader = _LOADER(text)
    try:
        tree = loader.get_single_node()
        if tree is None:
            return None, None
        _Values().count(tree)
        data = loader.construct_document(tree)  # puts merged keys (`<<`) into the nodes
        return data, yaml.compose(text, Loader=_LOADER) if "<<" in text else tree
    except RecursionError:
        raise _too_deep(0) from None
    except (ValueError, OverflowError) as error:  # of a date, or a number
        raise yaml.YAMLError(str(error)) from error
    finally:
        loader.dispose()


def _check_depth(text: str) -> None:
    """Refuse brackets within brackets, and entries within entries of one line, beyond a depth."""
    depth = in_line = 0
    end = -1
    for found in _BRACKET.finditer(text):
        word = found.group()
        if word in {"]", "}"}:
            depth = max(depth - 1, 0)
            continue
        if word in {"[", "{"}:
            depth += 1
        else:
            in_line = in_line + 1 if found.start() == end else 1
            end = found.end()
        if max(depth, in_line) > MAX_DEPTH:  # unless they are in texts
            _check_events(text)
            return


def _check_events(text: str) -> None:
    """Refuse a document as soon as it is nested beyond a depth."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _too_deep(event.start_mark.line if event.start_mark else 0)


class _Values:
    """Number of values below the nodes of a document."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}
        self._within: set[int] = set()

    def count(self, node: yaml.Node) -> int:
        """Return how many values a node is.

        Raises:
            MarkedYAMLError: Too many, or a number that is too long, or a node that contains itself.
        """
        key, line = id(node), node.start_mark.line
        if isinstance(node, yaml.ScalarNode):
            if node.tag != _TEXT and len(node.value) > _LONGEST_NUMBER:
                raise _refused(f"a number of {len(node.value)} characters", line)
            return 1
        if key in self._within:
            raise _refused("an alias of what contains it", line)
        if key not in self._known:
            self._within.add(key)
            below = (
                node.value
                if isinstance(node, yaml.SequenceNode)
                else chain.from_iterable(node.value)
            )
            self._known[key] = 1 + sum(map(self.count, below))
            self._within.discard(key)
            if self._known[key] > MAX_VALUES:
                raise _refused(f"more than {MAX_VALUES} values, with what aliases repeat", line)
        return self._known[key]


def _too_deep(line: int) -> yaml.MarkedYAMLError:
    return _refused(f"nested deeper than {MAX_DEPTH} levels", line)


def _refused(problem: str, line: int) -> yaml.MarkedYAMLError:
    mark = yaml.Mark("file", 0, line, 0, None, 0)
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
